"""A program that calls all hosts, and makes each host call the next, while links break."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from tests.hosts.cluster.actors import Member
from tests.hosts.cluster.steps import LIMIT_S, job

#: Number of concurrent calls per direction.
BATCH = 50
#: Time limit for a reply in seconds, which exceeds the longest partition of the tests.
REPLY_S_MAX = 3 * LIMIT_S

_stop = threading.Event()


@dataclass(frozen=True)
class CallTraffic:
    """The result of the calls."""

    calls: int
    """Number of calls, all of which received a reply."""
    longest_s: float
    """The maximum duration of a batch of calls, in seconds."""
    wrong: list[str]
    """Receivers that did not get each number once and in order."""


def make_calls() -> CallTraffic:
    """Make calls until `stop_calls` is called, and one batch more."""
    assert job.procs is not None
    _stop.clear()
    hosts = list(range(job.procs.extent["hosts"]))
    outer = [_first(job.procs.spawn("outer", Member), host) for host in hosts]
    inner = [_first(job.procs.spawn("inner", Member), host) for host in hosts]
    sent, longest_s = 0, 0.0
    is_last = False
    while not is_last:
        # One more batch runs after all links are restored.
        is_last = _stop.is_set()
        began = time.monotonic()
        pours = [
            one.pour.call_one(inner[(host + 1) % len(hosts)], sent, BATCH)
            for host, one in enumerate(outer)
        ]
        notes = [one.note.call_one(sent + at) for at in range(BATCH) for one in outer]
        for pour in pours:
            pour.get(timeout=REPLY_S_MAX)
        answers = [note.get(timeout=REPLY_S_MAX) for note in notes]
        assert answers == [sent + at for at in range(BATCH) for _ in outer]
        sent += BATCH
        longest_s = max(longest_s, time.monotonic() - began)
    wrong = [*_wrong("outer", outer, sent), *_wrong("inner", inner, sent)]
    return CallTraffic(sent * 2 * len(hosts), longest_s, wrong)


def stop_calls() -> None:
    """Stop making calls."""
    _stop.set()


def _first(members: Any, host: int) -> Any:
    return members.slice(hosts=host, procs=0)


def _wrong(name: str, members: list[Any], sent: int) -> list[str]:
    seen = [one.seen.call_one().get(timeout=LIMIT_S) for one in members]
    return [
        f"{name} {host}: {len(numbers)} of {sent}, {_first_wrong(numbers)}"
        for host, numbers in enumerate(seen)
        if numbers != list(range(sent))
    ]


def _first_wrong(numbers: list[int]) -> str:
    for at, number in enumerate(numbers):
        if number != at:
            return f"{number} in the place of {at}"
    return "cut short"
