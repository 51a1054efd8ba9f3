"""Actors that are spawned by one program and used by the next."""

from __future__ import annotations

import os
import select
import sys
import time

from mesh_core import Actor, CallCancelled, Port, endpoint, this_host


class Counter(Actor):
    """Has a state that is worth keeping."""

    def __init__(self, start: int) -> None:
        self.count = start
        self.ended: list[str] = []

    @endpoint
    def add(self, number: int) -> int:
        """Counts."""
        self.count += number
        return self.count

    @endpoint
    def pid(self) -> int:
        """Names the process."""
        return os.getpid()

    @endpoint
    def last(self) -> list[str]:
        """Says how the calls have ended that took long."""
        return self.ended

    @endpoint
    def wait(self, begun: Port[int]) -> None:
        """Takes for ever."""
        begun.send(self.count)
        try:
            while True:
                time.sleep(0.01)
        except CallCancelled:
            self.ended.append("cancelled")
            raise

    @endpoint
    def fail_without(self, begun: Port[int], caller: int) -> None:
        """Fails once a process is gone."""
        handle = os.pidfd_open(caller)
        begun.send(self.count)
        select.select([handle], [], [])
        raise ValueError("as it was told")

    @endpoint
    def say(self, line: str) -> None:
        """Prints."""
        print(line, file=sys.stdout, flush=True)


class Keeper(Actor):
    """Owns actors of its own."""

    def __init__(self) -> None:
        self.mine = this_host().spawn_procs().spawn("mine", Counter, 100)

    @endpoint
    def ask(self, number: int) -> int:
        """Asks what it owns."""
        answer: int = self.mine.add.call_one(number).get()
        return answer

    @endpoint
    def pids(self) -> tuple[int, int]:
        """Names the process, and that of what it owns."""
        return os.getpid(), self.mine.pid.call_one().get()


class Laden(Counter):
    """Takes more along than is noted anywhere."""

    def __init__(self, start: int, load: bytes) -> None:
        super().__init__(start)
        self.load = load
