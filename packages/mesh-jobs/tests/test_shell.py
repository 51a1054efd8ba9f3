"""A shell on a host, under a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING

import pytest
from workers import END_LIMIT_S, is_alive

from mesh_core.testing import wait_until
from mesh_jobs import shell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import HostMesh

PROGRAM = """
import ctypes, signal, subprocess, sys
from mesh_core import attach_to_workers, configure
from mesh_jobs import shell
configure(host_lease_s=3.0)
signal.signal(signal.SIGINT, signal.default_int_handler)
command = [sys.executable, "-m", "mesh_core.worker", "--listen", "tcp://127.0.0.1:0"]
def end_with_the_program():  # also with one that is killed: PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)

worker = subprocess.Popen(
    command,
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    text=True,
    start_new_session=True,
    preexec_fn=end_with_the_program,
)
hosts = attach_to_workers([worker.stdout.readline().split()[-1]])
try:
    status = shell(hosts, *sys.argv[1:], env={"PS1": "there> "})
    hosts.shutdown().get()
finally:
    worker.terminate()
    worker.wait()
    worker.stdout.close()
print("status", status)
"""


class Window:
    """A terminal window that runs the program."""

    def __init__(self, *arguments: str) -> None:
        self.fd, theirs = os.openpty()
        self.resize(30, 100)
        self.program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self.seen = ""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def expect(self, text: str) -> str:
        """Read until a text appears; return and discard the output up to its end."""
        until = time.monotonic() + END_LIMIT_S
        while text not in self.seen:
            ready = select.select([self.fd], [], [], max(0, until - time.monotonic()))[0]
            assert ready, f"{text!r} never came: {self.seen!r}"
            try:
                self.seen += os.read(self.fd, 4096).decode()
            except OSError:
                raise AssertionError(f"ended before {text!r} came: {self.seen!r}") from None
        before, _, self.seen = self.seen.partition(text)
        return before + text


@pytest.fixture
def window() -> Iterator[Window]:
    window = Window("exec /bin/sh -i")
    yield window
    if window.program.poll() is None:
        window.program.kill()
    window.program.wait()
    os.close(window.fd)


def test_keys_are_sent_to_the_host_and_the_exit_status_is_returned(window: Window) -> None:
    window.expect("there> ")
    window.type("tty; stty size; exit 7\n")
    assert "/dev/pts/" in window.expect("30 100")
    window.expect("status 7")
    assert window.program.wait(END_LIMIT_S) == 0


def test_ctrl_c_interrupts_the_command_on_the_host_and_not_the_program(window: Window) -> None:
    window.expect("there> ")
    window.type("sh -c 'echo begun; exec sleep 600'\n")
    window.expect("\nbegun")
    window.type("\x03")
    window.expect("there> ")
    window.type("echo still $((40 + 2)); exit\n")
    window.expect("still 42")
    window.expect("status")


def test_a_window_resize_is_forwarded(window: Window) -> None:
    window.expect("there> ")
    window.type("trap 'stty size' WINCH; echo set; while :; do read line; done\n")
    window.expect("\nset")
    window.resize(50, 132)
    window.expect("50 132")


def test_the_terminal_is_restored_afterwards(window: Window) -> None:
    before = termios.tcgetattr(window.fd)
    window.expect("there> ")
    assert termios.tcgetattr(window.fd) != before
    window.type("exit\n")
    window.expect("status 0")
    assert termios.tcgetattr(window.fd) == before


def test_the_shell_on_the_host_exits_with_the_program(window: Window) -> None:
    window.expect("there> ")
    window.type("trap '' HUP; echo pid $$.\n")
    window.expect("\npid ")
    pid = int(window.expect(".")[:-1])
    window.program.send_signal(signal.SIGTERM)
    window.program.wait(END_LIMIT_S)
    wait_until(lambda: not is_alive(pid), END_LIMIT_S)


def test_piped_input_is_sent_to_the_host_with_an_end_of_file() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, "stty -echo; cat; cat; exit 3"],
        input="a line",
        capture_output=True,
        text=True,
        timeout=END_LIMIT_S,
    )
    assert "a line" in run.stdout
    assert "status 3" in run.stdout


def test_a_shell_needs_a_single_host(hosts: HostMesh) -> None:
    with pytest.raises(ValueError, match="a shell needs a single host, not 2: slice the mesh"):
        shell(hosts)
