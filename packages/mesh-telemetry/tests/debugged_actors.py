"""Actors that pause at breakpoints, and functions that inspect them."""

from __future__ import annotations

from typing import Any

from mesh_core import Actor, current_rank, endpoint
from mesh_core.testing import wait_until
from mesh_telemetry import Telemetry

LIMIT_S = 60.0


class Trainer(Actor):
    """Computes something, with a breakpoint in the middle."""

    def __init__(self) -> None:
        self.steps = 0

    @endpoint
    def step(self, number: int) -> int:
        loss = number * 10 + current_rank().rank
        breakpoint()
        self.steps += 1
        return loss

    @endpoint
    def count(self) -> int:
        return self.steps

    @endpoint
    def divide(self, number: int) -> float:
        below = number - number
        return number / below

    @endpoint
    def is_loaded(self, module: str) -> bool:
        import sys

        return module in sys.modules

    @endpoint
    def hide(self, module: str) -> None:
        import sys

        sys.modules[module] = None  # type: ignore[assignment]

    @endpoint
    def loop(self, count: int) -> int:
        total = 0
        breakpoint()
        for number in range(count):
            total += number
        return total


class AsyncTrainer(Actor):
    """The same on the event loop of its process."""

    @endpoint
    async def step(self, number: int) -> int:
        loss = number * 10
        breakpoint()
        return loss + await self.more()

    async def more(self) -> int:
        return 1

    @endpoint
    async def divide(self, number: int) -> float:
        below = number - number
        return number / below


def paused_sessions(telemetry: Telemetry, count: int = 1) -> list[dict[str, Any]]:
    """Wait until this number of sessions is paused, and return them."""

    def found() -> list[dict[str, Any]]:
        sessions = telemetry.debug_sessions()
        return sessions if len(sessions) == count else []

    return wait_until(found, LIMIT_S)


def wait_until_none_paused(telemetry: Telemetry) -> None:
    """Wait until no session is paused."""
    wait_until(lambda: telemetry.debug_sessions() == [], LIMIT_S)
