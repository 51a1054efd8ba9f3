"""Addresses of pods: each pod has a separate loopback address of this machine."""

from __future__ import annotations

import fcntl
import itertools
import os
import tempfile
import threading
from pathlib import Path

#: The networks of concurrent clusters: the first uses `127.0.79.x`.
NETWORKS = range(79, 128)
FIRST, LAST = 20, 249


class Addresses:
    """Assigns addresses in turn, so that a replacement pod gets a new one, as in a real cluster."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The open file reserves the network for the lifetime of this process.
        self._prefix, self._file = _network()
        self._turn = itertools.cycle(range(FIRST, LAST + 1))
        self._taken: set[str] = set()

    def take(self) -> str:
        with self._lock:
            for _ in range(FIRST, LAST + 1):
                address = f"{self._prefix}{next(self._turn)}"
                if address not in self._taken:
                    self._taken.add(address)
                    return address
        raise RuntimeError("no address is left for another pod: delete some")

    def give_back(self, address: str) -> None:
        with self._lock:
            self._taken.discard(address)


def _network() -> tuple[str, int]:
    """Reserve a network that no other cluster on this machine uses."""
    for number in NETWORKS:
        path = Path(tempfile.gettempdir(), f"mesh-kube-network-{number}")
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
        else:
            return f"127.0.{number}.", file
    raise RuntimeError("too many clusters run on this machine: end some")
