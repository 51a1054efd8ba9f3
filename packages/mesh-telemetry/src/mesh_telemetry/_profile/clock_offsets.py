"""Estimates the differences between the clocks of hosts from the messages between them.

In one direction, a message takes its delay plus the difference of the clocks; in the other
direction, its delay minus the difference. The minimum of each direction is used: half of their
difference is the difference of the clocks, and their sum is the shortest round trip.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

__all__ = ["ClockOffset", "clock_offsets", "least_delays"]

Delays = Mapping[tuple[int, int], int]


class ClockOffset(NamedTuple):
    """The amount by which the clock of a host is ahead.

    Attributes:
        offset_us: Microseconds relative to the first host; 0 if the difference does not exceed the
            shortest round trip, because it may then not exist.
        round_trip_us: The shortest round trip to the host that it was compared with.
    """

    offset_us: int
    round_trip_us: int


def least_delays(pairs: Iterable[tuple[int, int, int]]) -> dict[tuple[int, int], int]:
    """Return the minimum delay between each pair of hosts of (from, to, delay in microseconds)."""
    least: dict[tuple[int, int], int] = {}
    for source, target, delay_us in pairs:
        known = least.get((source, target))
        if known is None or delay_us < known:
            least[source, target] = delay_us
    return least


def clock_offsets(delays: Delays, first: int) -> dict[int, ClockOffset]:
    """Return how far the clock of each host is ahead of the first host's clock.

    Hosts that have not exchanged messages in both directions, directly or through other hosts, are
    omitted.

    Args:
        delays: The minimum delay from one host to another, as measured by their clocks.
        first: The host whose clock is the reference.

    Example:
        >>> clock_offsets({(0, 1): 5_100, (1, 0): -4_900}, first=0)[1]
        ClockOffset(offset_us=5000, round_trip_us=200)
    """
    found: dict[int, ClockOffset] = {}
    known = {first: 0}
    waiting = deque([first])
    while waiting:
        here = waiting.popleft()
        near = [
            (delays[here, there] + delays[there, here], there)
            for source, there in delays
            if source == here and there not in known and (there, here) in delays
        ]
        for round_trip_us, there in sorted(near):
            ahead_us = (delays[here, there] - delays[there, here]) // 2
            # A difference within the round trip may also be caused by asymmetric delays.
            is_certain = abs(ahead_us) > max(round_trip_us, 0)
            known[there] = known[here] + (ahead_us if is_certain else 0)
            found[there] = ClockOffset(known[there], round_trip_us)
            waiting.append(there)
    return found
