"""The program that is measured, on the client: does what it is told, line by line, and answers."""

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

#: Longer than anything takes that does happen.
LIMIT_S = 120.0


class Member(Actor):
    """One in each process."""

    @endpoint
    def noop(self, x: int) -> int:
        """Gives back what it got."""
        return x

    @endpoint
    def ends(self, x: Any) -> int:
        """Looks at the first and the last byte of an array."""
        return int(x[0]) + int(x[-1])

    @endpoint
    def pid(self) -> int:
        """The process."""
        return os.getpid()

    @endpoint
    def hang(self) -> None:
        """Does not return."""
        time.sleep(600)

    @endpoint
    def kill(self, pid: int, pause_s: float) -> float:
        """Kills another process of its host after a while; gives the time of that."""
        time.sleep(pause_s)
        now = time.monotonic()
        os.kill(pid, 9)
        return now


class Program:
    """What it may be told, by name."""

    def __init__(self, folder: str) -> None:
        """Has no hosts yet."""
        self._credentials = Credentials.load(folder)

    def attach(self, workers: list[str]) -> int:
        """Takes workers in."""
        self._hosts = attach_to_workers(workers, credentials=self._credentials)
        self._hosts.initialized.get(timeout=LIMIT_S)
        return len(workers)

    def spawn(self, procs: int, hosts: int) -> int:
        """Starts processes with an actor each on the first hosts."""
        chosen = self._hosts.slice(hosts=slice(0, hosts))
        self._procs = chosen.spawn_procs({"procs": procs})
        self._members = self._procs.spawn("members", Member)
        return len(self._members.noop.call(0).get(timeout=LIMIT_S).values())

    def stop(self) -> None:
        """Ends them."""
        self._procs.stop().get(timeout=LIMIT_S)

    def noops(self, calls: int) -> list[float]:
        """Calls all of them so many times; gives the seconds that each took."""
        noop, clock, times = self._members.noop, time.perf_counter, []
        for number in range(calls):
            started = clock()
            answers = noop.call(number).get(timeout=LIMIT_S)
            times.append(clock() - started)
            assert len(answers) == len(self._members)
        return times

    def cast(self, length: int) -> float:
        """Sends an array to all of them, which look at both ends; gives the seconds it took."""
        body = np.random.default_rng().integers(0, 256, length, dtype=np.uint8)
        started = time.perf_counter()
        answers = self._members.ends.call(body).get(timeout=LIMIT_S)
        took = time.perf_counter() - started
        assert set(answers.values()) == {int(body[0]) + int(body[-1])}
        return took

    def kills(self, pause_s: float) -> list[float]:
        """Kills all processes of the last host but one, each in the middle of a call."""
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
        """Waits for a host until it is dead; gives the time of that. Says first that it waits."""
        pending = self._members.slice(hosts=rank, procs=0).hang.call_one()
        print(json.dumps("waiting"), flush=True)
        try:
            pending.get(timeout=LIMIT_S)
        except HostDied:
            return time.monotonic()
        raise AssertionError("a call to a dead host returned")


def answer(kind: type[Program]) -> None:
    """Reads what to do, one line of JSON each, and answers with another."""
    # What is killed here is killed on purpose.
    mesh_core.unhandled_fault_hook = lambda failure: None
    program = kind(sys.argv[1])
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        print(json.dumps(getattr(program, what)(*arguments)), flush=True)


if __name__ == "__main__":
    answer(Program)
