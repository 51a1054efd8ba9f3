"""Actors that hang, each in a different way; they do not import Arrow."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import AsyncIterator

from mesh_core import Actor, concurrent_endpoint, endpoint


class Stuck(Actor):
    """Hangs in C code and holds the GIL."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def hold(self, path: str) -> None:
        batch_size = 4711
        open(path, "w").close()
        # Calls through PyDLL never release the GIL.
        ctypes.PyDLL(None).sleep(600)
        raise AssertionError(batch_size)

    @endpoint
    def spin(self, seconds: float) -> int:
        turns = 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            turns += 1
        return turns


class Dreamer(Actor):
    """Awaits an event that never happens."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()

    @concurrent_endpoint
    async def dream(self) -> str:
        return await self.sleep_deeply()

    async def sleep_deeply(self) -> str:
        async for word in self.words():
            return word
        return ""

    async def words(self) -> AsyncIterator[str]:
        await self.is_open.wait()
        yield "awake"

    @endpoint
    async def wake(self) -> None:
        self.is_open.set()
