"""The processes of a mount and of readers, for tests that stop and kill them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mesh_core.testing import wait_until

LIMIT_S = 60.0
SOURCE, HOST = "mesh-fs-source", "mesh-fs"

#: Reads a file, and prints the number of bytes or the negative error number. It exits on SIGINT
#: like most programs: a program with a handler runs the handler only after the read has returned.
_READ = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
print("begins", flush=True)
try:
    with open(sys.argv[1], "rb", buffering=0) as file:
        print(len(file.read()))
except OSError as error:
    print(-error.errno)
"""


def processes(name: str) -> list[int]:
    """Return the processes with this name that belong to this program."""
    return [pid for pid in _all() if _field(pid, "Name") == name and _is_below(pid, os.getpid())]


def the_process(name: str) -> int:
    """Return the only process of a name, once those of earlier mounts have exited."""
    wait_until(lambda: len(processes(name)) == 1, LIMIT_S)
    (pid,) = processes(name)
    return pid


def has_ended(pid: int) -> bool:
    """Return whether a process has exited or is a zombie."""
    return _field(pid, "State")[:1] in ("", "Z")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process for the duration of the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: _field(pid, "State").startswith("T"), LIMIT_S)
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


class Reading:
    """Another process that reads a file; a context manager."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _READ, os.fspath(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "begins\n"

    def wait_until_suspended(self) -> None:
        """Wait until the read blocks."""
        wait_until(self._is_suspended, LIMIT_S)

    def _is_suspended(self) -> bool:
        place = Path(f"/proc/{self._process.pid}/wchan").read_text()
        return "folio_wait" in place or "request_wait_answer" in place

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        self._process.send_signal(number)

    def status(self) -> int:
        """Wait for the exit of the process, and return its status."""
        return self._process.wait(LIMIT_S)

    def result(self) -> int:
        """Return the number of bytes read, or the negative error number."""
        output, _ = self._process.communicate(timeout=LIMIT_S)
        return int(output)

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _is_below(pid: int, ancestor: int) -> bool:
    while pid > 1 and pid != ancestor:
        pid = int(_field(pid, "PPid") or 0)
    return pid == ancestor


def _field(pid: int, name: str) -> str:
    """Return a field of the status of a process; empty if it has exited."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return ""
    return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(f"{name}:"))
