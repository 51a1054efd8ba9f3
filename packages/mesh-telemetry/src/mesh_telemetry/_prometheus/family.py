"""Metric families: a name with its kind, and the samples of its series."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Family", "FamilyHead", "HistogramValue", "Labels", "Sample", "series_names"]

#: Names and values of labels.
Labels = tuple[tuple[str, str], ...]
Kind = Literal["counter", "gauge", "histogram"]


class HistogramValue(NamedTuple):
    """The value of a histogram since the start of the program."""

    bounds: tuple[float, ...]
    """The upper bounds of the buckets, ascending."""
    counts: tuple[int, ...]
    """The number of values in each bucket; the last one has the values above all bounds."""
    sum: float
    """The sum of the values."""


class Sample(NamedTuple):
    """The value of one series; a histogram has several lines, but is one series here."""

    labels: Labels
    value: float | HistogramValue


class FamilyHead(NamedTuple):
    """A metric family without its samples."""

    name: str
    """The name, for counters without the suffix `_total`."""
    kind: Kind
    unit: str
    """The unit, with which the name ends, such as `seconds`; empty if there is none."""
    text: str
    """The description."""
    is_measured: bool = False
    """Whether the program recorded it; otherwise Mesh did."""


class Family(NamedTuple):
    """A metric family."""

    head: FamilyHead
    samples: Sequence[Sample]


def series_names(head: FamilyHead) -> frozenset[str]:
    """Return every name that the lines of a family may have; no other family may have them."""
    suffixes = {
        "counter": ("", "_total", "_created"),
        "gauge": ("",),
        "histogram": ("", "_bucket", "_sum", "_count", "_created"),
    }
    return frozenset(head.name + suffix for suffix in suffixes[head.kind])
