"""How far the clocks of hosts are apart, as far as messages between them tell.

A message that goes one way takes its delay plus the difference of the clocks, one that goes the
other way its delay less the difference. Of each way the least counts: half of what they differ by
is the difference of the clocks, and their sum the least round trip.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

__all__ = ["ClockOffset", "clock_offsets", "least_delays"]

Delays = Mapping[tuple[int, int], int]


class ClockOffset(NamedTuple):
    """By how much the clock of a host is ahead.

    Attributes:
        offset_us: So many microseconds, against the first host; 0 where it may be none, as it is
            not more than the least round trip.
        round_trip_us: The least round trip to the host that it was compared with.
    """

    offset_us: int
    round_trip_us: int


def least_delays(pairs: Iterable[tuple[int, int, int]]) -> dict[tuple[int, int], int]:
    """Gives the least delay from one host to another of (from, to, delay in microseconds)."""
    least: dict[tuple[int, int], int] = {}
    for source, target, delay_us in pairs:
        known = least.get((source, target))
        if known is None or delay_us < known:
            least[source, target] = delay_us
    return least


def clock_offsets(delays: Delays, first: int) -> dict[int, ClockOffset]:
    """Gives how far the clock of each host is ahead of that of the first.

    Hosts that have exchanged no messages both ways, not even through others, are left out.

    Args:
        delays: The least delay from one host to another, as their clocks tell it.
        first: The host whose clock counts.

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
            # Within the round trip, it may as well be that one way takes longer.
            is_certain = abs(ahead_us) > max(round_trip_us, 0)
            known[there] = known[here] + (ahead_us if is_certain else 0)
            found[there] = ClockOffset(known[there], round_trip_us)
            waiting.append(there)
    return found
