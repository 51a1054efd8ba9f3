"""The difference between two clocks of this process."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["clock_difference_ns"]

# If the thread is interrupted between two readings, they differ by milliseconds.
_READINGS = 5


def clock_difference_ns(one: Callable[[], int], other: Callable[[], int]) -> int:
    """Return by how many nanoseconds a clock is ahead of another one.

    The function uses the reading that took the least time.
    """
    readings = []
    for _ in range(_READINGS):
        before = other()
        value = one()
        after = other()
        readings.append((after - before, value - (before + after) // 2))
    return min(readings)[1]
