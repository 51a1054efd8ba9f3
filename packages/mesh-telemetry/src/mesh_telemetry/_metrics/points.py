"""Data points of metrics, as deltas since the previous point of the same metric."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["HistogramPoint", "NumberPoint", "Point"]


@dataclass(frozen=True)
class Point:
    """The part that all data points have.

    Attributes:
        name: The metric, such as `mesh.call.duration`.
        unit: Its unit, as in UCUM, such as `s` or `{message}`; may be empty.
        at_us: The time of the last value, in microseconds since the epoch.
        start_us: The time of the first value, in microseconds since the epoch; None for gauges.
        attributes: The attributes; a value of None counts as absent.
        actor_id: The actor that recorded the values; None outside actors.
    """

    name: str
    unit: str
    at_us: int
    start_us: int | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    actor_id: int | None = None


@dataclass(frozen=True)
class NumberPoint(Point):
    """A value of a gauge, or what was added to a sum.

    Attributes:
        value: The number.
        is_sum: Whether it was added to a sum.
        is_monotonic: Whether the sum never decreases.
    """

    value: int | float = 0
    is_sum: bool = False
    is_monotonic: bool = False


@dataclass(frozen=True)
class HistogramPoint(Point):
    """The values of a histogram since the previous point.

    Attributes:
        count: The number of values.
        sum: Their sum.
        min: The smallest value.
        max: The largest value.
        bounds: The upper bounds of the buckets, ascending.
        bucket_counts: The number of values in each bucket; the last one has the values above all
            bounds.
    """

    count: int = 0
    sum: float = 0.0
    min: float = 0.0
    max: float = 0.0
    bounds: tuple[float, ...] = ()
    bucket_counts: tuple[int, ...] = ()
