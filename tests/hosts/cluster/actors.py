"""The actors that the tests spawn on the hosts."""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

from mesh_core import Actor, MeshFailure, ProcMesh, endpoint


class Member(Actor):
    """The actor of each process; it records the numbers that it received."""

    def __init__(self) -> None:
        """Create an actor that has received nothing."""
        self._seen: list[int] = []

    @endpoint
    def where(self) -> tuple[str, int]:
        """Return the name of the host, and the pid as seen on the host."""
        return socket.gethostname(), os.getpid()

    @endpoint
    def echo(self, value: Any) -> Any:
        """Return the argument."""
        return value

    @endpoint
    def note(self, number: int) -> int:
        """Record a number."""
        self._seen.append(number)
        return number

    @endpoint
    def seen(self) -> list[int]:
        """Return all numbers in the order in which they arrived."""
        return self._seen

    @endpoint
    def pour(self, other: Any, first: int, count: int) -> None:
        """Send numbers to another member concurrently, and check that each call gets its own reply.

        Raises:
            AssertionError: A reply did not match its call.
        """
        futures = [other.note.call_one(number) for number in range(first, first + count)]
        answers = [future.get() for future in futures]
        assert answers == list(range(first, first + count)), answers

    @endpoint
    def ask(self, other: Any, value: int) -> int:
        """Call another member on any host."""
        answer: int = other.echo.call_one(value).get()
        return answer

    @endpoint
    def wait_for(self, other: Any) -> None:
        """Wait forever for another member."""
        other.never.call_one().get()

    @endpoint
    def never(self) -> None:
        """Never return."""
        signal.pause()


class Owner(Actor):
    """Owns a mesh on other hosts and records the failures that it is notified of."""

    def __init__(self, procs: ProcMesh) -> None:
        """Spawn members on processes that another owner spawned."""
        self._told: list[str] = []
        self.members = procs.spawn("owned", Member)

    @endpoint
    def ready(self) -> int:
        """Return the number of members that reply."""
        return len(self.members.echo.call(0).get(timeout=30).values())

    @endpoint
    def told(self) -> list[str]:
        """Return the failures that `__supervise__` received."""
        return self._told

    def __supervise__(self, failure: MeshFailure) -> bool:
        """Record the failure."""
        self._told.append(f"{type(failure.error).__name__} of {failure.mesh_name}")
        return True
