"""Bare interpreters that import asyncio and pickle: the floor of starting processes by exec."""

from __future__ import annotations

import os
import subprocess
import sys

from bench.drivers.driver import Driver

_CHILD = "import asyncio, os, pickle, sys; os.write(1, b'x'); sys.stdin.read()"


class ChildrenDriver(Driver):
    """A worker is a `python -c` process that writes a byte when it is ready and exits at EOF."""

    name = "floor_children"

    def start(self, workers: int, kind: str = "blocking") -> None:
        read_fd, write_fd = os.pipe()
        self._children = [
            subprocess.Popen([sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=write_fd)
            for _ in range(workers)
        ]
        os.close(write_fd)
        ready = 0
        while ready < workers:
            answers = os.read(read_fd, workers)
            if not answers:
                raise OSError("a bare child ended before it was ready: run it by hand")
            ready += len(answers)
        os.close(read_fd)

    def stop(self) -> None:
        for child in self._children:
            assert child.stdin is not None
            child.stdin.close()

    def close(self) -> None:
        for child in self._children:
            child.wait()

    def pids(self) -> list[int]:
        return [child.pid for child in self._children]


def driver() -> Driver:
    """Return the driver of this floor."""
    return ChildrenDriver()
