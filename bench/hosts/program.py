"""The measured program on the client: executes commands line by line, and replies."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

import mesh_core
from mesh_core import (
    Actor,
    Credentials,
    HostDied,
    SupervisionError,
    attach_to_workers,
    endpoint,
)

#: Exceeds the duration of everything that completes.
LIMIT_S = 120.0


class Member(Actor):
    """The actor in each process."""

    @endpoint
    def noop(self, x: int) -> int:
        """Return the argument."""
        return x

    @endpoint
    def ends(self, x: Any) -> int:
        """Return the sum of the first and the last byte of an array."""
        return int(x[0]) + int(x[-1])

    @endpoint
    def pid(self) -> int:
        """Return the pid."""
        return os.getpid()

    @endpoint
    def hang(self) -> None:
        """Never return."""
        time.sleep(600)

    @endpoint
    def kill(self, pid: int, pause_s: float) -> float:
        """Kill another process of the host after a pause; return the time of the kill."""
        time.sleep(pause_s)
        now = time.monotonic()
        os.kill(pid, 9)
        return now


class Program:
    """The commands of the program, by name."""

    def __init__(self, folder: str) -> None:
        """Create a program without hosts."""
        self._credentials = Credentials.load(folder)

    def attach(self, workers: list[str]) -> int:
        """Attach workers."""
        self._hosts = attach_to_workers(workers, credentials=self._credentials)
        self._hosts.initialized.get(timeout=LIMIT_S)
        return len(workers)

    def spawn(self, procs: int, hosts: int) -> int:
        """Spawn processes with one actor each on the first hosts."""
        chosen = self._hosts.slice(hosts=slice(0, hosts))
        self._procs = chosen.spawn_procs({"procs": procs})
        self._members = self._procs.spawn("members", Member)
        return len(self._members.noop.call(0).get(timeout=LIMIT_S).values())

    def stop(self) -> None:
        """Stop the processes."""
        self._procs.stop().get(timeout=LIMIT_S)

    def noops(self, calls: int) -> list[float]:
        """Call all actors this many times; return the duration of each call in seconds."""
        noop, clock, times = self._members.noop, time.perf_counter, []
        for number in range(calls):
            started = clock()
            answers = noop.call(number).get(timeout=LIMIT_S)
            times.append(clock() - started)
            assert len(answers) == len(self._members)
        return times

    def cast(self, length: int) -> float:
        """Send an array to all actors, which read both ends; return the duration in seconds."""
        body = np.random.default_rng().integers(0, 256, length, dtype=np.uint8)
        started = time.perf_counter()
        answers = self._members.ends.call(body).get(timeout=LIMIT_S)
        took = time.perf_counter() - started
        assert set(answers.values()) == {int(body[0]) + int(body[-1])}
        return took

    def kills(self, pause_s: float) -> list[float]:
        """Kill all processes except one of the last host, each during a call to it."""
        last = self._members.slice(hosts=self._members.size("hosts") - 1)
        killer = last.slice(procs=0)
        times = []
        for rank in range(1, last.size("procs")):
            victim = last.slice(procs=rank)
            pid = victim.pid.call_one().get(timeout=LIMIT_S)
            pending = victim.hang.call_one()
            killed = killer.kill.call_one(pid, pause_s)
            try:
                pending.get(timeout=LIMIT_S)
            except SupervisionError:
                times.append(time.monotonic() - killed.get(timeout=LIMIT_S))
        return times

    def lose(self, rank: int) -> float:
        """Wait until a host is dead and return that time; print a line before waiting."""
        pending = self._members.slice(hosts=rank, procs=0).hang.call_one()
        print(json.dumps("waiting"), flush=True)
        try:
            pending.get(timeout=LIMIT_S)
        except HostDied:
            return time.monotonic()
        raise AssertionError("a call to a dead host returned")


def answer(kind: type[Program]) -> None:
    """Read commands, one line of JSON each, and print one line of JSON as the reply."""
    # The deaths are intentional.
    mesh_core.unhandled_fault_hook = lambda failure: None
    program = kind(sys.argv[1])
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        print(json.dumps(getattr(program, what)(*arguments)), flush=True)


if __name__ == "__main__":
    answer(Program)
