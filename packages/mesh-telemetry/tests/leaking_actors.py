"""An actor that leaks memory."""

from __future__ import annotations

import os

from mesh_core import Actor, endpoint

MIB = 1 << 20


class Leaky(Actor):
    def __init__(self) -> None:
        self.kept: list[bytes] = []

    @endpoint
    def leak(self) -> None:
        self.kept.append(b"x" * MIB)  # the leak

    @endpoint
    def forget(self) -> None:
        self.kept.clear()

    @endpoint
    def use(self) -> int:
        return len(b"y" * (64 * MIB))

    @endpoint
    def pid(self) -> int:
        return os.getpid()
