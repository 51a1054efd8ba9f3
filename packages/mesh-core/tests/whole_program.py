"""Runs a separate program and returns its output, exit status, duration and leftovers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

MARK = "MESH_TEST_MARK"
# Time that the kernel may need to clean up killed processes.
_LEAVING_LIMIT_S = 5.0

PRELUDE = """
import asyncio, ctypes, os, queue, signal, sys, threading, time
import mesh_core
from mesh_core import *
from mesh_core.services import Service

class Worker(Actor):
    def __init__(self, fails=False):
        if fails:
            raise ValueError("cannot begin")
        self.count = 0
    @endpoint
    def add(self, n=1):
        self.count += n
        return self.count
    @endpoint
    def pid(self):
        return os.getpid()
    @endpoint
    def sleep(self, seconds):
        time.sleep(seconds)
    @endpoint
    def fail(self, text="boom"):
        raise KeyError(text)
    @endpoint
    def say(self, *lines):
        for line in lines:
            print(line)
    @endpoint
    def leave(self, status):
        print("last words")
        os._exit(status)
    @endpoint
    def crash(self):
        ctypes.string_at(0)
    @endpoint
    def spin(self):
        while True:
            pass

def kill(mesh):
    os.kill(mesh.pid.call_one().get(), signal.SIGKILL)

def ready():
    print("ready", flush=True)

_noted = queue.SimpleQueue()

def note_failures():
    # Those that nobody takes end the program no more. To be called before anything else.
    configure(failure_grace_s=0.3)
    mesh_core.unhandled_fault_hook = lambda failure: _noted.put(failure.mesh_name)

def noted_failures():
    # One more failure: when that is told, the grace of all that came before it is over.
    this_host().spawn_procs().spawn("last to fail", Worker).fail.broadcast()
    return list(iter(lambda: _noted.get(timeout=20), "last to fail"))
"""


class Ended(NamedTuple):
    """The result of a program."""

    status: int
    """Its exit status, or the negative number of the signal that ended it."""
    out: str
    err: str
    seconds: float
    """From the signal that it was sent, or from its start."""


def run(
    folder: Path,
    code: str,
    *,
    send: int | None = None,
    is_impatient: bool = False,
    limit_s: float = 30.0,
    env: dict[str, str] | None = None,
) -> Ended:
    """Run code after the prelude.

    Args:
        folder: The folder for the script and its temporary files.
        code: The program.
        send: A signal to send once the program prints "ready".
        is_impatient: Send the signal every second until the program has exited.
        limit_s: Time limit in seconds.
        env: Changes to the environment.

    Raises:
        AssertionError: The program took too long, or left a process or a file behind.
    """
    script = folder / "program.py"
    script.write_text(PRELUDE + textwrap.dedent(code))
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    mark = uuid.uuid4().hex
    world = {**os.environ, MARK: mark, "TMPDIR": str(temporary), **(env or {})}
    started = time.monotonic()
    with (
        open(folder / "out", "w+") as out,
        open(folder / "err", "w+") as err,
        subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=world,
            cwd=folder,
        ) as process,
    ):
        try:
            if send is not None:
                _await_ready(folder / "out", process, limit_s)
                started = time.monotonic()
                process.send_signal(send)
                if is_impatient:
                    _send_until_ended(process, send, limit_s)
            status = process.wait(limit_s)
        except BaseException:
            _kill_marked(mark)
            print((folder / "out").read_text(), (folder / "err").read_text())
            raise
    took = time.monotonic() - started
    left = _wait_until_gone(mark, temporary)
    _kill_marked(mark)
    ended = Ended(status, (folder / "out").read_text(), (folder / "err").read_text(), took)
    assert not left, f"left behind: {left}\n{ended.out}\n{ended.err}"
    return ended


def _await_ready(out: Path, process: subprocess.Popen[bytes], limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while "ready" not in out.read_text():
        assert process.poll() is None, f"it ended with {process.returncode} before it was ready"
        assert time.monotonic() < until, "it was never ready"
        time.sleep(0.01)


def _send_until_ended(process: subprocess.Popen[bytes], send: int, limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.send_signal(send)
        else:
            return


def _wait_until_gone(mark: str, temporary: Path) -> list[str]:
    until = time.monotonic() + _LEAVING_LIMIT_S
    while True:
        left = [f"process {pid}: {name}" for pid, name in marked(mark)]
        left += [f"file {path}" for path in temporary.iterdir()]
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.01)


def marked(mark: str) -> Iterator[tuple[int, str]]:
    """Yield the processes with a mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted in (entry / "environ").read_bytes():
                yield (
                    int(entry.name),
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(),
                )
        except OSError:
            continue


def _kill_marked(mark: str) -> None:
    for pid, _ in marked(mark):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
