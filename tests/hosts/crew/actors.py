"""What runs on the hosts in the tests."""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

from mesh_core import Actor, MeshFailure, ProcMesh, endpoint


class Member(Actor):
    """One in each process; remembers the numbers it was given."""

    def __init__(self) -> None:
        """Remembers nothing yet."""
        self._seen: list[int] = []

    @endpoint
    def where(self) -> tuple[str, int]:
        """The host's name and the process, as the host sees it."""
        return socket.gethostname(), os.getpid()

    @endpoint
    def echo(self, value: Any) -> Any:
        """Gives back what it got."""
        return value

    @endpoint
    def note(self, number: int) -> int:
        """Remembers a number."""
        self._seen.append(number)
        return number

    @endpoint
    def seen(self) -> list[int]:
        """All numbers, in the order in which they came."""
        return self._seen

    @endpoint
    def pour(self, other: Any, first: int, count: int) -> None:
        """Sends numbers to another one, many at a time, and sees that each is answered by itself.

        Raises:
            AssertionError: An answer was not the one to its call.
        """
        futures = [other.note.call_one(number) for number in range(first, first + count)]
        answers = [future.get() for future in futures]
        assert answers == list(range(first, first + count)), answers

    @endpoint
    def ask(self, other: Any, value: int) -> int:
        """Asks another one, wherever it is."""
        answer: int = other.echo.call_one(value).get()
        return answer

    @endpoint
    def wait_for(self, other: Any) -> None:
        """Waits for ever for another one."""
        other.never.call_one().get()

    @endpoint
    def never(self) -> None:
        """Takes for ever."""
        signal.pause()


class Owner(Actor):
    """Owns a mesh on other hosts, and keeps what it is told of it."""

    def __init__(self, procs: ProcMesh) -> None:
        """Spawns on processes that somebody else owns."""
        self._told: list[str] = []
        self.members = procs.spawn("owned", Member)

    @endpoint
    def ready(self) -> int:
        """How many of them answer."""
        return len(self.members.echo.call(0).get(timeout=30).values())

    @endpoint
    def told(self) -> list[str]:
        """What `__supervise__` was called with."""
        return self._told

    def __supervise__(self, failure: MeshFailure) -> bool:
        """Takes note."""
        self._told.append(f"{type(failure.error).__name__} of {failure.mesh_name}")
        return True
