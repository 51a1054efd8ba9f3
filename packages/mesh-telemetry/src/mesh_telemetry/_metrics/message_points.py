"""Data points that are derived from messages: counts, bytes, call durations and queue length."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from typing import TYPE_CHECKING

from mesh_telemetry._metrics.points import HistogramPoint, NumberPoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from mesh_telemetry._metrics.points import Point

    Row = dict[str, Any]

__all__ = [
    "CALL_BOUNDS_S",
    "CALL_DURATION",
    "MESSAGE_POINT_TABLES",
    "QUEUE_LENGTH",
    "MessagePoints",
]

#: The tables that `MessagePoints` reads.
MESSAGE_POINT_TABLES = ("sent_messages", "messages", "message_status_events")
CALL_DURATION = "mesh.call.duration"
QUEUE_LENGTH = "mesh.queue.length"
#: Upper bounds of the buckets for call durations, in seconds.
CALL_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
_PENDING_MAX = 100_000


class MessagePoints:
    """Derives the data points of one process; keeps the calls that have not been answered."""

    def __init__(self) -> None:
        self._sent: OrderedDict[int, tuple[int, str | None]] = OrderedDict()
        self._queued: OrderedDict[int, None] = OrderedDict()
        self._queued_casts = 0
        self._last_us = 0

    def points_of(self, tables: Mapping[str, list[Row]]) -> list[Point]:
        """Return the data points of new rows.

        Args:
            tables: The rows of `MESSAGE_POINT_TABLES`, by table.
        """
        sent, received = tables["sent_messages"], tables["messages"]
        changes = tables["message_status_events"]
        times = [row["timestamp_us"] for rows in (sent, received, changes) for row in rows]
        if not times:
            return []
        last_us = max(times)
        first_us = min(min(times), self._last_us or last_us)
        self._last_us = last_us
        found: list[Point] = []
        for word, rows in (("sent", sent), ("received", received)):
            found += _counts(word, rows, first_us, last_us)
        self._track(sent, received)
        for (endpoint, code), durations_s in self._call_durations(changes).items():
            attributes = {"mesh.endpoint": endpoint, "error.type": str(code) if code else None}
            found.append(_durations(durations_s, first_us, last_us, attributes))
        waiting = len(self._queued) + self._queued_casts
        found.append(NumberPoint(QUEUE_LENGTH, "{message}", last_us, value=waiting))
        return found

    def _track(self, sent: list[Row], received: list[Row]) -> None:
        for row in sent:
            if row["call"] is not None:
                _remember(self._sent, row["id"], (row["timestamp_us"], row.get("endpoint")))
        for row in received:
            if row["call"] is None:
                self._queued_casts += 1
            else:
                _remember(self._queued, row["id"], None)

    def _call_durations(self, changes: list[Row]) -> dict[tuple[str | None, int], list[float]]:
        found: dict[tuple[str | None, int], list[float]] = {}
        for row in changes:
            number, status = row["message_id"], row["status"]
            if status in ("active", "refused"):
                if number is not None:
                    self._queued.pop(number, None)
                else:
                    # Messages may have been queued before counting began.
                    self._queued_casts = max(self._queued_casts - 1, 0)
            elif status in ("returned", "cancelled") and number in self._sent:
                sent_us, endpoint = self._sent.pop(number)
                if status == "returned":
                    durations_s = found.setdefault((endpoint, row["code"]), [])
                    durations_s.append(max(row["timestamp_us"] - sent_us, 0) / 1e6)
        return found


def _counts(word: str, rows: list[Row], first_us: int, last_us: int) -> Iterator[NumberPoint]:
    counts: dict[str | None, list[int]] = {}
    for row in rows:
        both = counts.setdefault(row.get("endpoint"), [0, 0])
        both[0] += 1
        both[1] += row["bytes"]
    for endpoint, both in counts.items():
        names = ((f"mesh.messages.{word}", "{message}"), (f"mesh.messages.{word}.bytes", "By"))
        for (name, unit), value in zip(names, both, strict=True):
            yield NumberPoint(
                name,
                unit,
                last_us,
                first_us,
                {"mesh.endpoint": endpoint},
                value=value,
                is_sum=True,
                is_monotonic=True,
            )


def _durations(
    durations_s: list[float], first_us: int, last_us: int, attributes: Mapping[str, Any]
) -> HistogramPoint:
    buckets = [0] * (len(CALL_BOUNDS_S) + 1)
    for duration_s in durations_s:
        buckets[bisect_left(CALL_BOUNDS_S, duration_s)] += 1
    return HistogramPoint(
        CALL_DURATION,
        "s",
        last_us,
        first_us,
        attributes,
        count=len(durations_s),
        sum=sum(durations_s),
        min=min(durations_s),
        max=max(durations_s),
        bounds=CALL_BOUNDS_S,
        bucket_counts=tuple(buckets),
    )


def _remember(known: OrderedDict[int, Any], number: int, value: Any) -> None:
    known[number] = value
    if len(known) > _PENDING_MAX:
        known.popitem(last=False)
