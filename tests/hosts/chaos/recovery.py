"""How long it took until a host answered again, by what had been wrong with it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

#: Those that are printed, beside the longest.
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class _Wait:
    """A host that all is well with again, but that has not answered yet."""

    fault: str
    host: str
    since: float


class Recovery:
    """Waits for answers, and takes the times."""

    def __init__(self) -> None:
        """Has seen nothing yet."""
        self._waits: list[_Wait] = []
        self._times: dict[str, list[float]] = defaultdict(list)
        self._changed = threading.Condition()

    def expect(self, fault: str, hosts: Iterable[str], since: float) -> None:
        """Says what was wrong, with which hosts, and since when it is not so any more."""
        with self._changed:
            self._waits += [_Wait(fault, host, since) for host in hosts]

    def answered(self, host: str, sent: float) -> None:
        """Says that a host has just answered a call that was made at that time."""
        with self._changed:
            done = [wait for wait in self._waits if wait.host == host and sent >= wait.since]
            if done:
                now = time.monotonic()
                for wait in done:
                    self._times[wait.fault].append(now - wait.since)
                    self._waits.remove(wait)
                self._changed.notify_all()

    def wait(self, limit_s: float) -> list[str]:
        """Waits until all hosts have answered, and returns what is still missing by then."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waits, limit_s)
            return [f"{wait.host} after {wait.fault}" for wait in self._waits]

    def times(self) -> Mapping[str, Sequence[float]]:
        """Returns the times of each fault, in seconds, the shortest first."""
        with self._changed:
            return {fault: sorted(times) for fault, times in sorted(self._times.items())}


def table(times: Mapping[str, Sequence[float]]) -> str:
    """Returns the percentiles of the recovery times, in milliseconds."""
    heads = [f"p{one} ms" for one in PERCENTILES]
    lines = [_line("recovery from", "times", [*heads, "longest"])]
    every = sorted(one for some in times.values() for one in some)
    for fault, some in [*times.items(), *([("all", every)] if every else [])]:
        cells = [percentile(some, one) for one in (*PERCENTILES, 100)]
        lines.append(_line(fault, str(len(some)), [f"{cell * 1e3:.1f}" for cell in cells]))
    return "\n".join(lines)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Returns the smallest of some ordered numbers that so many in a hundred do not exceed."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank) - 1, 0)]


def _line(fault: str, times: str, cells: Sequence[str]) -> str:
    return f"{fault:<16}{times:>6}" + "".join(f"{cell:>10}" for cell in cells)
