"""One mapping shared by two processes: the floor of a large payload.

`cast` is *filled and read once*: the client copies its private, warm array into the mapping (one
read and one write of every byte), wakes the worker with one byte, the worker reads every byte once
(a maximum over 64-bit words, the cheapest full read), and wakes the client with one byte. Both
sides have touched every page before, so no page faults occur during the measurement.

`echo` is three warm copies: into a mapping, from it into a second one by the worker, and from there
into private memory.
"""

from __future__ import annotations

import mmap
import os
import socket
from typing import Any

import numpy as np

from bench.drivers.driver import Driver

_BYTES_MAX = 64 << 20


class SharedMappingDriver(Driver):
    """A worker is a fork that waits for one byte and then reads the mapping."""

    name = "floor_shared_mapping"

    def start(self, workers: int, kind: str = "blocking") -> None:
        self._there = np.frombuffer(mmap.mmap(-1, _BYTES_MAX), np.uint8)
        self._back = np.frombuffer(mmap.mmap(-1, _BYTES_MAX), np.uint8)
        self._private = np.ones(_BYTES_MAX, np.uint8)
        self._there[:] = 1
        self._back[:] = 1
        self._socket, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._socket.close()
            try:
                self._serve(theirs)
            finally:
                os._exit(0)
        theirs.close()
        # The first read by the worker maps its pages.
        self._ask(b"r", _BYTES_MAX)
        self._ask(b"e", _BYTES_MAX)

    def stop(self) -> None:
        self._socket.close()
        os.waitpid(self._pid, 0)

    def pids(self) -> list[int]:
        return [self._pid]

    def echo(self, x: Any) -> Any:
        n = len(x)
        np.copyto(self._there[:n], x)
        self._ask(b"e", n)
        np.copyto(self._private[:n], self._back[:n])
        return self._private[:n]

    def cast(self, x: Any, *, read: bool) -> None:
        np.copyto(self._there[: len(x)], x)
        self._ask(b"r", len(x))

    def _ask(self, what: bytes, n: int) -> None:
        self._socket.send(what + n.to_bytes(8, "little"))
        if not self._socket.recv(1):
            raise EOFError("the worker of the shared mapping ended: run this floor by itself")

    def _serve(self, sock: socket.socket) -> None:
        while message := sock.recv(9):
            n = int.from_bytes(message[1:], "little")
            if message[:1] == b"r":
                self._there[:n].view(np.uint64).max()
            else:
                np.copyto(self._back[:n], self._there[:n])
            sock.send(b"x")


def driver() -> Driver:
    """Return the driver of this floor."""
    return SharedMappingDriver()
