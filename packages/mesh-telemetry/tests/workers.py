"""Workers on this machine, each a separate host for programs that attach to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LIMIT_S = 60.0


class WorkerProcess:
    """A worker that listens on the loopback interface, on a free port."""

    def __init__(self) -> None:
        words = [sys.executable, "-m", "mesh_core.worker", "--listen", "tcp://127.0.0.1:0"]
        self._process = subprocess.Popen(
            words, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().split()[-1]

    def power_off(self) -> None:
        """Kill all processes of the worker, including itself, like a power cut of the machine."""
        left = [self._process.pid, *_descendants(self._process.pid)]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        self._process.wait(LIMIT_S)

    def end(self) -> None:
        """Stop the worker in an orderly way."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(LIMIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def workers(count: int) -> Iterator[list[WorkerProcess]]:
    """Run workers for the duration of the block."""
    started = [WorkerProcess() for _ in range(count)]
    try:
        yield started
    finally:
        for worker in started:
            worker.end()


def _descendants(pid: int) -> list[int]:
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *_descendants(int(child))]
    return found
