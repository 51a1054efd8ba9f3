"""The series of a host, which outlive the rows that they are counted from."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from mesh_telemetry._prometheus.family import Family, HistogramValue, Sample
from mesh_telemetry._prometheus.name_registry import NameRegistry

if TYPE_CHECKING:
    from mesh_telemetry._prometheus.family import FamilyHead, Labels

__all__ = ["HostSeries"]

T = TypeVar("T")

# The lines of a histogram in addition to its finite buckets: the infinity bucket, the sum and the
# count.
_HISTOGRAM_LINES = 3


class _Reading(NamedTuple):
    """The value that a process has given a gauge."""

    at_us: int
    value: float
    is_level: bool
    """Whether it is a sum that can decrease, so the values of several processes are added."""


class HostSeries:
    """Counters and histograms since telemetry started, and the gauges of live processes.

    Counters and histograms have no label for the process, so they do not decrease when a process
    exits and its rank is replaced. A gauge exists as long as its process.

    Args:
        series_max: The maximum number of series that come from messages and events, and of series
            that come from measurements of the program; each bucket of a histogram counts.

    Attributes:
        omitted: The number of data points that were not counted, by reason: `limit` if the maximum
            was reached, `conflict` if the name belongs to another metric or the bounds of the
            histogram have changed, `invalid` if a counter would have decreased.
    """

    def __init__(self, series_max: int) -> None:
        self._series_max = series_max
        self._names = NameRegistry()
        self._totals: dict[FamilyHead, dict[Labels, float | HistogramValue]] = {}
        self._gauges: dict[FamilyHead, dict[Labels, dict[str, _Reading]]] = {}
        self._counts = {False: 0, True: 0}
        self.omitted: dict[str, int] = {"limit": 0, "conflict": 0, "invalid": 0}

    def add(self, head: FamilyHead, labels: Labels, value: float) -> None:
        """Add to a counter."""
        if not (value >= 0 and math.isfinite(value)):
            self.omitted["invalid"] += 1
            return
        series = self._series(head, labels, self._totals, 1)
        if series is not None:
            before = series.get(labels, 0)
            assert not isinstance(before, HistogramValue), "the family is a counter"
            series[labels] = before + value

    def add_histogram(self, head: FamilyHead, labels: Labels, value: HistogramValue) -> None:
        """Add values to a histogram."""
        if not math.isfinite(value.sum) or len(value.counts) != len(value.bounds) + 1:
            self.omitted["invalid"] += 1
            return
        weight = len(value.bounds) + _HISTOGRAM_LINES
        series = self._series(head, labels, self._totals, weight)
        if series is None:
            return
        before = series.get(labels)
        if not isinstance(before, HistogramValue):
            series[labels] = value
        elif before.bounds != value.bounds:
            self.omitted["conflict"] += 1
        else:
            counts = tuple(map(sum, zip(before.counts, value.counts, strict=True)))
            series[labels] = HistogramValue(value.bounds, counts, before.sum + value.sum)

    def set(self, head: FamilyHead, labels: Labels, proc: str, at_us: int, value: float) -> None:
        """Set the gauge of a process, unless it has a later value."""
        readings = self._readings(head, labels)
        if readings is not None and (proc not in readings or readings[proc].at_us <= at_us):
            readings[proc] = _Reading(at_us, value, False)

    def add_level(
        self, head: FamilyHead, labels: Labels, proc: str, at_us: int, value: float
    ) -> None:
        """Add to a sum of a process that can decrease."""
        readings = self._readings(head, labels)
        if readings is not None:
            before = readings[proc].value if proc in readings else 0
            readings[proc] = _Reading(at_us, before + value, True)

    def remove_gauges(self, proc: str) -> None:
        """Remove the gauges of a process that has exited."""
        for head, series in self._gauges.items():
            for labels in [labels for labels, readings in series.items() if proc in readings]:
                del series[labels][proc]
                if not series[labels]:
                    del series[labels]
                    self._counts[head.is_measured] -= 1

    def families(self) -> list[Family]:
        """Return all families that have series."""
        found = [
            Family(head, [Sample(*item) for item in series.items()])
            for head, series in self._totals.items()
        ]
        for head, gauges in self._gauges.items():
            samples = [Sample(labels, _value(readings)) for labels, readings in gauges.items()]
            if samples:
                found.append(Family(head, samples))
        return found

    def _readings(self, head: FamilyHead, labels: Labels) -> dict[str, _Reading] | None:
        series = self._series(head, labels, self._gauges, 1)
        return None if series is None else series.setdefault(labels, {})

    def _series(
        self,
        head: FamilyHead,
        labels: Labels,
        families: dict[FamilyHead, dict[Labels, T]],
        weight: int,
    ) -> dict[Labels, T] | None:
        """Return the series of a family; None if the series is new and cannot be added."""
        known = families.get(head)
        if known is not None and labels in known:
            return known
        if self._counts[head.is_measured] + weight > self._series_max:
            self.omitted["limit"] += 1
            return None
        owner = self._names.head_for(head)
        if owner is None:
            self.omitted["conflict"] += 1
            return None
        series = families.setdefault(owner, {})
        if labels not in series:
            self._counts[head.is_measured] += weight
        return series


def _value(readings: dict[str, _Reading]) -> float:
    if any(reading.is_level for reading in readings.values()):
        return sum(reading.value for reading in readings.values())
    # Ranks of two meshes with the same name have the same labels.
    return max(readings.values()).value
