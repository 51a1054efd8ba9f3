"""Actors for the replicas in the tests of services."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from mesh_core import Actor, concurrent_endpoint, current_rank, endpoint
from mesh_core.services import ServiceOverloaded

if TYPE_CHECKING:
    from pathlib import Path


class Worker(Actor):
    """Identifies itself, and stores values."""

    def __init__(self, greeting: str = "hello") -> None:
        self.greeting = greeting
        self.memory: list[str] = []

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def rank(self) -> int:
        return current_rank().rank

    @endpoint
    def double(self, n: int, seconds: float = 0.0) -> int:
        time.sleep(seconds)
        return 2 * n

    @endpoint
    def greet(self, name: str) -> str:
        return f"{self.greeting} {name}"

    @endpoint
    def remember(self, word: str) -> list[str]:
        self.memory.append(word)
        return self.memory

    @endpoint
    def append_to(self, path: Path, line: str, seconds: float = 0.0) -> str:
        with path.open("a") as file:
            file.write(line + "\n")
        time.sleep(seconds)
        return line

    @endpoint
    def refuse(self) -> None:
        raise ValueError("this is refused")

    @endpoint
    def overload(self) -> None:
        raise ServiceOverloaded("another service", 1, 2, 3)

    @endpoint
    def die(self) -> None:
        os._exit(3)


class Holder(Actor):
    """Holds calls until it is requested to release them."""

    def __init__(self) -> None:
        self.held = 0
        self.is_well = True
        self.latch = asyncio.Event()

    @concurrent_endpoint
    async def hold(self) -> int:
        self.held += 1
        try:
            await self.latch.wait()
        finally:
            self.held -= 1
        return os.getpid()

    @concurrent_endpoint
    async def release(self) -> None:
        self.latch.set()

    @concurrent_endpoint
    async def held_count(self) -> int:
        return self.held

    @concurrent_endpoint
    async def pid(self) -> int:
        return os.getpid()

    @concurrent_endpoint
    async def fall_ill(self) -> None:
        self.is_well = False

    @concurrent_endpoint
    async def hang(self) -> None:
        time.sleep(60)  # noqa: ASYNC251

    @concurrent_endpoint
    async def check(self) -> None:
        if not self.is_well:
            raise RuntimeError("not well")


class Unstartable(Actor):
    """Raises in `__init__`."""

    def __init__(self, why: str = "no weights") -> None:
        raise ValueError(why)

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Caller(Actor):
    """Calls a service from a separate process."""

    def __init__(self, workers: Worker) -> None:
        self.workers = workers

    @endpoint
    def pids(self, count: int) -> list[int]:
        futures = [self.workers.pid.route() for _ in range(count)]
        return [future.get() for future in futures]

    @endpoint
    async def doubles(self, count: int) -> list[int]:
        return [await self.workers.double.route(n) for n in range(count)]
