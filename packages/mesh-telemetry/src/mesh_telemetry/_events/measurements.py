"""Aggregation of measurements between two writes, so that busy instruments stay cheap."""

from __future__ import annotations

from bisect import bisect_left

from mesh_telemetry._events.event_lines import attributes_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core.spi import Event

__all__ = ["BOUNDS", "Measurements"]

COUNTER, UP_DOWN_COUNTER, HISTOGRAM, GAUGE = 1, 2, 3, 4

#: Upper bounds of the buckets of a histogram: the defaults of OpenTelemetry.
BOUNDS = (0, 5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000)


class Measurements:
    """Measurements since the last write, grouped by instrument, attributes and actor."""

    def __init__(self) -> None:
        self._lines: dict[tuple[int, str, str, int], dict[str, Any]] = {}
        self._gauges: list[dict[str, Any]] = []

    def add(self, event: Event) -> None:
        """Add a measurement; gauges are not aggregated."""
        time_us, value = event.time_ns // 1000, event.value or 0
        attributes = attributes_text(event.attributes)
        if event.code == GAUGE:
            line = _new_measurement(event, attributes)
            self._gauges.append({**line, "value": value, "n": 1})
            return
        key = (event.code, event.text, attributes, event.actor)
        line = self._lines.get(key) or self._lines.setdefault(
            key, _new_measurement(event, attributes)
        )
        line["t"] = time_us
        line["n"] = line.get("n", 0) + 1
        line["value"] = line.get("value", 0) + value
        if event.code == HISTOGRAM:
            line["min"] = min(line.get("min", value), value)
            line["max"] = max(line.get("max", value), value)
            buckets = line.setdefault("buckets", [0] * (len(BOUNDS) + 1))
            buckets[bisect_left(BOUNDS, value)] += 1

    def take(self) -> list[dict[str, Any]]:
        """Return a line for each group, oldest first, and reset."""
        lines = sorted([*self._lines.values(), *self._gauges], key=lambda line: line["t"])
        self._lines, self._gauges = {}, []
        return lines


def _new_measurement(event: Event, attributes: str) -> dict[str, Any]:
    time_us = event.time_ns // 1000
    return {
        "t": time_us,
        "k": event.code,
        "start": time_us,
        "name": event.text,
        "unit": getattr(event.subject, "unit", ""),
        "attributes": attributes,
        "actor": event.actor,
    }
