"""Drives `mesh top` like a user: sends keys and reads the screen."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from textual.pilot import Pilot
from textual.widgets import Static

from mesh_telemetry._top.app import Top
from mesh_telemetry._top.entries import Entry
from mesh_telemetry._top.tree import EntryTree

LIMIT_S = 60.0
T = TypeVar("T")


class Person:
    """A user in front of the screen."""

    def __init__(self, app: Top, pilot: Pilot[Any]) -> None:
        self.app = app
        self.pilot = pilot
        self.tree = app.query_one(EntryTree)

    async def until(self, condition: Callable[[], T], what: object = "") -> T:
        """Wait until the screen meets a condition."""
        deadline = time.monotonic() + LIMIT_S
        while not (found := condition()):
            assert time.monotonic() < deadline, f"{what or condition} is not seen: {self.seen()}"
            await self.pilot.pause(0.02)
        return found

    async def press(self, *keys: str) -> None:
        """Press keys."""
        await self.pilot.press(*keys)

    async def write(self, text: str) -> None:
        """Type a text."""
        names = {" ": "space", "*": "asterisk", "'": "apostrophe", "=": "equals_sign"}
        await self.pilot.press(*(names.get(one, one) for one in text))

    def entries(self) -> list[Entry]:
        """Return the visible lines of the tree from top to bottom."""
        found: list[Entry] = []

        def take(node: Any) -> None:
            for child in node.children:
                found.append(child.data)
                if child.is_expanded:
                    take(child)

        take(self.tree.root)
        return found

    def titles(self, state: str | None = None) -> list[str]:
        """Return the titles in the tree, optionally only those with a state."""
        return [one.title for one in self.entries() if state in (None, one.state)]

    def text(self, name: str) -> str:
        """Return the text of a part of the screen."""
        return str(self.app.screen_stack[0].query_one(f"#{name}", Static).content)

    def tab(self, name: str) -> str:
        """Return the text of a tab."""
        return self.text(f"text-{name}")

    def seen(self) -> str:
        """Return the visible text for error messages."""
        tab = self.app._tab
        return "\n".join([self.text("head"), self.text("status"), *self.titles(), self.tab(tab)])

    async def go(self, title: str) -> Entry:
        """Move to a line of the tree with the keyboard."""
        await self.until(lambda: title in self.titles(), title)
        await self.press("g")
        for _ in range(len(self.entries())):
            current = self.tree.current
            if current is not None and current.title == title:
                return current
            await self.press("j")
        raise AssertionError(f"no way to {title}: {self.seen()}")


@asynccontextmanager
async def top(
    pid: int | None, refresh_s: float = 0.2, size: tuple[int, int] = (160, 45)
) -> AsyncIterator[Person]:
    """Run `mesh top` on a program and yield its user."""
    app = Top(pid, refresh_s)
    async with app.run_test(size=size) as pilot:
        yield Person(app, pilot)
