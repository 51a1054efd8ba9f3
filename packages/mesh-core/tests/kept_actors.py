"""Actors that one program spawns and the next one uses."""

from __future__ import annotations

import os
import select
import sys
import time

from mesh_core import Actor, CallCancelled, Port, endpoint, this_host


class Counter(Actor):
    """Has state that is worth preserving."""

    def __init__(self, start: int) -> None:
        self.count = start
        self.ended: list[str] = []

    @endpoint
    def add(self, number: int) -> int:
        """Add to the counter."""
        self.count += number
        return self.count

    @endpoint
    def pid(self) -> int:
        """Return the pid."""
        return os.getpid()

    @endpoint
    def last(self) -> list[str]:
        """Return how the long calls ended."""
        return self.ended

    @endpoint
    def wait(self, begun: Port[int]) -> None:
        """Run forever."""
        begun.send(self.count)
        try:
            while True:
                time.sleep(0.01)
        except CallCancelled:
            self.ended.append("cancelled")
            raise

    @endpoint
    def fail_without(self, begun: Port[int], caller: int) -> None:
        """Fail when a process has exited."""
        handle = os.pidfd_open(caller)
        begun.send(self.count)
        select.select([handle], [], [])
        raise ValueError("as it was told")

    @endpoint
    def say(self, line: str) -> None:
        """Print a line."""
        print(line, file=sys.stdout, flush=True)


class Keeper(Actor):
    """Owns other actors."""

    def __init__(self) -> None:
        self.mine = this_host().spawn_procs().spawn("mine", Counter, 100)

    @endpoint
    def ask(self, number: int) -> int:
        """Call the actor that it owns."""
        answer: int = self.mine.add.call_one(number).get()
        return answer

    @endpoint
    def pids(self) -> tuple[int, int]:
        """Return the pids of the process and of the actor that it owns."""
        return os.getpid(), self.mine.pid.call_one().get()


class Laden(Counter):
    """Has more arguments than are recorded anywhere."""

    def __init__(self, start: int, load: bytes) -> None:
        super().__init__(start)
        self.load = load
