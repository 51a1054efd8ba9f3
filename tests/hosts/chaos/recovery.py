"""Recovery times: how long each host needed to reply again, grouped by the preceding fault."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

#: The percentiles to print in addition to the maximum.
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class _Wait:
    """A host whose fault is healed and that has not replied since."""

    fault: str
    host: str
    since: float


class Recovery:
    """Waits for replies and records the recovery times."""

    def __init__(self) -> None:
        """Create an empty record."""
        self._waits: list[_Wait] = []
        self._times: dict[str, list[float]] = defaultdict(list)
        self._changed = threading.Condition()

    def expect(self, fault: str, hosts: Iterable[str], since: float) -> None:
        """Register a fault that was healed at `since`, and the hosts that it affected."""
        with self._changed:
            self._waits += [_Wait(fault, host, since) for host in hosts]

    def answered(self, host: str, sent: float) -> None:
        """Record that a host has just replied to a call that was made at `sent`."""
        with self._changed:
            done = [wait for wait in self._waits if wait.host == host and sent >= wait.since]
            if done:
                now = time.monotonic()
                for wait in done:
                    self._times[wait.fault].append(now - wait.since)
                    self._waits.remove(wait)
                self._changed.notify_all()

    def wait(self, limit_s: float) -> list[str]:
        """Wait until all hosts have replied, and return the hosts that have not replied in time."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waits, limit_s)
            return [f"{wait.host} after {wait.fault}" for wait in self._waits]

    def times(self) -> Mapping[str, Sequence[float]]:
        """Return the recovery times of each fault, in seconds, in ascending order."""
        with self._changed:
            return {fault: sorted(times) for fault, times in sorted(self._times.items())}


def table(times: Mapping[str, Sequence[float]]) -> str:
    """Return a table of the percentiles of the recovery times, in milliseconds."""
    heads = [f"p{one} ms" for one in PERCENTILES]
    lines = [_line("recovery from", "times", [*heads, "longest"])]
    every = sorted(one for some in times.values() for one in some)
    for fault, some in [*times.items(), *([("all", every)] if every else [])]:
        cells = [percentile(some, one) for one in (*PERCENTILES, 100)]
        lines.append(_line(fault, str(len(some)), [f"{cell * 1e3:.1f}" for cell in cells]))
    return "\n".join(lines)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest of the ordered numbers that at least `percent` % do not exceed."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank) - 1, 0)]


def _line(fault: str, times: str, cells: Sequence[str]) -> str:
    return f"{fault:<16}{times:>6}" + "".join(f"{cell:>10}" for cell in cells)
