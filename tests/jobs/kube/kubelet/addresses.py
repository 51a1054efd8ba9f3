"""Addresses of pods, each its own on this machine."""

from __future__ import annotations

import itertools
import threading

PREFIX = "127.0.78."
FIRST, LAST = 20, 249


class Addresses:
    """Gives addresses in turn, so that a pod's successor has another one, as in a real cluster."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = itertools.cycle(range(FIRST, LAST + 1))
        self._taken: set[str] = set()

    def take(self) -> str:
        with self._lock:
            for _ in range(FIRST, LAST + 1):
                address = f"{PREFIX}{next(self._turn)}"
                if address not in self._taken:
                    self._taken.add(address)
                    return address
        raise RuntimeError("no address is left for another pod: delete some")

    def give_back(self, address: str) -> None:
        with self._lock:
            self._taken.discard(address)
