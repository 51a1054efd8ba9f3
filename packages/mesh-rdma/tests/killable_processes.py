"""Processes with buffers that tests may kill."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from freezing import freeze

from mesh_rdma import RDMABuffer, _core, allocate

__all__ = ["KillableProcess", "pattern"]

_BLOCK_LEN = 65521


def pattern(seed: int, nbytes: int) -> bytes:
    """Return bytes in which all pages differ."""
    block = bytes((seed * 31 + place * place) % 251 for place in range(_BLOCK_LEN))
    return (block * (nbytes // _BLOCK_LEN + 1))[:nbytes]


class KillableProcess:
    """One such process."""

    def __init__(self) -> None:
        path = Path(__file__)
        self._process = subprocess.Popen(
            [sys.executable, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.pid = self._process.pid
        self._is_stuck = False

    def register(self, nbytes: int, seed: int | None = None) -> RDMABuffer:
        """Make the process register zeros or a pattern."""
        buffer = self._ask("register", nbytes, seed)
        assert isinstance(buffer, RDMABuffer)
        return buffer

    def has(self, seed: int) -> list[bool]:
        """Return for each registered buffer whether it contains a pattern."""
        found: list[bool] = self._ask("has", seed)
        return found

    def clear(self) -> None:
        """Make the process release all memory."""
        self._ask("clear")

    def kill(self) -> None:
        """Kill the process immediately."""
        os.kill(self.pid, signal.SIGKILL)

    def freeze(self) -> None:
        """Stop the process until it is killed."""
        self._is_stuck = True
        freeze(self.pid)

    def counts(self) -> tuple[int, int]:
        """Return the number of registrations, and of released ones whose memory is still kept."""
        counts: tuple[int, int] = self._ask("counts")
        return counts

    def wait_for_counts(self, wanted: tuple[int, int]) -> None:
        """Wait until the process has this number of registrations."""
        assert self._ask("wait", wanted) == wanted

    def is_alive(self) -> bool:
        """Return whether the process was neither killed nor stopped."""
        return self._process.poll() is None and not self._is_stuck

    def stop(self) -> None:
        """End the process, in any state."""
        self._process.kill()
        self._process.communicate()

    def _ask(self, *question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump(question, self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)


def _waited(wanted: tuple[int, int]) -> tuple[int, int]:
    until = time.monotonic() + 10
    while _core.counts()[:2] != wanted and time.monotonic() < until:
        time.sleep(0.01)
    return _core.counts()[:2]


def _main() -> None:
    registered: list[tuple[memoryview, RDMABuffer]] = []
    while True:
        try:
            what, *arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        if what == "register":
            nbytes, seed = arguments
            memory = allocate(nbytes)
            if seed is not None:
                memory[:] = pattern(seed, nbytes)
            registered.append((memory, RDMABuffer(memory)))
            answer: Any = registered[-1][1]
        elif what == "has":
            answer = [bytes(one) == pattern(arguments[0], len(one)) for one, _ in registered]
        elif what == "counts":
            answer = _core.counts()[:2]
        elif what == "wait":
            answer = _waited(arguments[0])
        else:
            registered.clear()
            answer = None
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _main()
