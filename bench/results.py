"""The measurements of all rounds, and the verdict on each row."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from bench.goals import Row, Source


@dataclass
class Results:
    """All measurements that runners printed, and their medians."""

    lines: list[dict[str, Any]] = field(default_factory=list)

    def median(self, source: Source, placement: str) -> float | None:
        """Return the median over blocks and rounds, or None if it was not measured."""
        values = self._values()[source.driver, source.workload, placement, source.metric]
        return statistics.median(values) if values else None

    def _values(self) -> dict[tuple[str, str, str, str], list[float]]:
        grouped: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
        for line in self.lines:
            key = line["driver"], line["workload"], line["placement"], line["metric"]
            grouped[key].append(line["value"])
        return grouped


@dataclass(frozen=True)
class Verdict:
    """One row in one placement: the three figures, the ratios, and whether the goal is met."""

    row: Row
    placement: str
    ours: float | None
    peer: float | None
    floor: float | None
    own: float | None

    @property
    def vs_peer(self) -> float | None:
        """How many times better than the peer."""
        if not self.ours or not self.peer:
            return None
        return self.ours / self.peer if self.row.is_rate else self.peer / self.ours

    @property
    def vs_floor(self) -> float | None:
        """How many times the floor; for a rate, the share of it."""
        return self.ours / self.floor if self.ours is not None and self.floor else None

    @property
    def is_met(self) -> bool | None:
        """Whether every part of the goal holds; None if it has no parts or a figure is missing."""
        parts = self._parts()
        if False in parts:
            return False
        return True if parts and None not in parts else None

    def word(self) -> str:
        """Return the verdict in one word, or an empty string for a row without a goal."""
        if not self.row.goal():
            return ""
        return {True: "met", False: "MISSED", None: "not measured"}[self.is_met]

    def _parts(self) -> list[bool | None]:
        row = self.row
        parts: list[bool | None] = []
        if row.peer_gain_min is not None:
            gain = self.vs_peer
            parts.append(None if gain is None else gain >= row.peer_gain_min)
        if row.floor_ratio is not None:
            parts.append(self._within(self.vs_floor, row.floor_ratio))
        if row.limit is not None:
            parts.append(self._within(self.ours, row.limit))
        if row.own_ratio is not None:
            times = self.ours / self.own if self.ours is not None and self.own else None
            parts.append(self._within(times, row.own_ratio))
        return parts

    def _within(self, value: float | None, bound: float) -> bool | None:
        if value is None:
            return None
        return value >= bound if self.row.is_rate else value <= bound


def judge(row: Row, placement: str, results: Results) -> Verdict:
    """Look up the figures of a row."""
    theirs = Source(row.source.workload, row.source.metric, row.peer)
    return Verdict(
        row,
        placement,
        ours=results.median(row.source, placement),
        peer=results.median(theirs, placement),
        floor=results.median(row.floor, placement) if row.floor else None,
        own=results.median(row.own, placement) if row.own else None,
    )
