"""Converts measurements to OTLP metrics, and derives metrics from messages."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
)

from mesh_telemetry._otlp.requests import Item, attributes_of, json_attributes, resource_of

if TYPE_CHECKING:
    from mesh_telemetry._events.proc_folder import ProcIdentity
    from mesh_telemetry._otlp.options import OtlpConfig
    from mesh_telemetry._otlp.segment_tail import NewRows

    Row = dict[str, Any]

__all__ = ["METRIC_TABLES", "MetricConverter", "dropped_metric"]

METRIC_TABLES = (
    "metric_gauges",
    "metric_sums",
    "metric_histograms",
    "sent_messages",
    "messages",
    "message_status_events",
)
_DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
_POINTS_MAX = 500
_PENDING_MAX = 100_000
#: Upper bounds of the buckets for call durations, in seconds.
_CALL_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0,
)  # fmt: skip


class MetricConverter:
    """Converts rows to metrics.

    Args:
        config: The attributes of all processes.
    """

    def __init__(self, config: OtlpConfig) -> None:
        self._config = config
        self._messages: dict[str, _MessageCounts] = {}

    def convert(
        self, new_rows: Sequence[NewRows], identities: dict[str, ProcIdentity], is_last: bool
    ) -> list[Item]:
        """Return the metrics of each process."""
        found = []
        for one in new_rows:
            resource = resource_of(self._config, one.folder.identity)
            name = one.folder.path.name
            messages = self._messages.setdefault(name, _MessageCounts())
            metrics = _measured(one.tables) + messages.metrics_of(one.tables)
            found += [Item(resource, metric) for metric in metrics]
            if one.is_over:
                del self._messages[name]
        return found


def dropped_metric(dropped: dict[tuple[str, str], int], since_ns: int, now_ns: int) -> Metric:
    """Return the metric of items that were not exported, by signal and cause."""
    metric = Metric(name="mesh.telemetry.export.dropped", unit="{item}")
    metric.sum.aggregation_temporality = _DELTA
    metric.sum.is_monotonic = True
    for (signal, cause), count in dropped.items():
        attributes = {"mesh.signal": signal, "mesh.cause": cause}
        metric.sum.data_points.append(
            NumberDataPoint(
                start_time_unix_nano=since_ns,
                time_unix_nano=now_ns,
                as_int=count,
                attributes=attributes_of(attributes),
            )
        )
    return metric


class _MetricGroups:
    """Metrics by name and kind, with their data points."""

    def __init__(self) -> None:
        self.metrics: list[Metric] = []
        self._open: dict[tuple[Any, ...], Metric] = {}

    def points(self, kind: str, name: str, unit: str, *, is_monotonic: bool = False) -> Any:
        """Return the list to which a data point is added."""
        key = (kind, name, unit, is_monotonic)
        metric = self._open.get(key)
        if metric is None or len(getattr(metric, kind).data_points) >= _POINTS_MAX:
            metric = self._open[key] = Metric(name=name, unit=unit)
            self.metrics.append(metric)
            if kind != "gauge":
                getattr(metric, kind).aggregation_temporality = _DELTA
            if kind == "sum":
                metric.sum.is_monotonic = is_monotonic
        return getattr(metric, kind).data_points


def _measured(tables: Any) -> list[Metric]:
    grouped = _MetricGroups()
    for row in tables["metric_gauges"]:
        point = _number_point(row, "value")
        grouped.points("gauge", row["name"], row["unit"]).append(point)
    for row in tables["metric_sums"]:
        points = grouped.points(
            "sum", row["name"], row["unit"], is_monotonic=bool(row["is_monotonic"])
        )
        points.append(_number_point(row, "sum"))
    for row in tables["metric_histograms"]:
        histogram = HistogramDataPoint(
            start_time_unix_nano=row["start_timestamp_us"] * 1000,
            time_unix_nano=row["timestamp_us"] * 1000,
            count=row["count"],
            sum=row["sum_f64"],
            min=row["min_f64"],
            max=row["max_f64"],
            explicit_bounds=json.loads(row["bounds_json"]),
            bucket_counts=json.loads(row["bucket_counts_json"]),
            attributes=attributes_of(_attributes(row)),
        )
        grouped.points("histogram", row["name"], row["unit"]).append(histogram)
    return grouped.metrics


def _number_point(row: Row, name: str) -> NumberDataPoint:
    point = NumberDataPoint(
        start_time_unix_nano=(row["start_timestamp_us"] or row["timestamp_us"]) * 1000,
        time_unix_nano=row["timestamp_us"] * 1000,
        attributes=attributes_of(_attributes(row)),
    )
    if row[f"{name}_i64"] is not None:
        point.as_int = row[f"{name}_i64"]
    else:
        point.as_double = row[f"{name}_f64"]
    return point


def _attributes(row: Row) -> dict[str, Any]:
    attributes = json_attributes(row["attributes_json"])
    return (
        attributes
        if row["actor_id"] is None
        else attributes | {"mesh.actor_id": str(row["actor_id"])}
    )


class _CallDurations:
    """The durations of calls with the same result."""

    def __init__(self) -> None:
        self.durations_s: list[float] = []

    def point(self, first_us: int, last_us: int, attributes: dict[str, Any]) -> HistogramDataPoint:
        """Return a histogram of the durations."""
        buckets = [0] * (len(_CALL_BOUNDS_S) + 1)
        for duration_s in self.durations_s:
            buckets[bisect_left(_CALL_BOUNDS_S, duration_s)] += 1
        return HistogramDataPoint(
            start_time_unix_nano=first_us * 1000,
            time_unix_nano=last_us * 1000,
            count=len(self.durations_s),
            sum=sum(self.durations_s),
            min=min(self.durations_s),
            max=max(self.durations_s),
            explicit_bounds=_CALL_BOUNDS_S,
            bucket_counts=buckets,
            attributes=attributes_of(attributes),
        )


class _MessageCounts:
    """The state for deriving message metrics of one process."""

    def __init__(self) -> None:
        self._sent: OrderedDict[int, tuple[int, str | None]] = OrderedDict()
        self._queued: OrderedDict[int, None] = OrderedDict()
        self._queued_casts = 0
        self._last_us = 0

    def metrics_of(self, tables: Any) -> list[Metric]:
        """Return the metrics of new rows."""
        sent, received = tables["sent_messages"], tables["messages"]
        changes = tables["message_status_events"]
        times = [row["timestamp_us"] for rows in (sent, received, changes) for row in rows]
        if not times:
            return []
        last_us = max(times)
        first_us = min(min(times), self._last_us or last_us)
        self._last_us = last_us
        grouped = _MetricGroups()
        for word, rows in (("sent", sent), ("received", received)):
            _count(grouped, word, rows, first_us, last_us)
        self._track(sent, received)
        for (endpoint, code), calls in self._call_durations(changes).items():
            attributes = {"mesh.endpoint": endpoint, "error.type": str(code) if code else None}
            points = grouped.points("histogram", "mesh.call.duration", "s")
            points.append(calls.point(first_us, last_us, attributes))
        waiting = NumberDataPoint(
            time_unix_nano=last_us * 1000, as_int=len(self._queued) + self._queued_casts
        )
        grouped.points("gauge", "mesh.queue.length", "{message}").append(waiting)
        return grouped.metrics

    def _track(self, sent: list[Row], received: list[Row]) -> None:
        for row in sent:
            if row["call"] is not None:
                _remember(self._sent, row["id"], (row["timestamp_us"], row.get("endpoint")))
        for row in received:
            if row["call"] is None:
                self._queued_casts += 1
            else:
                _remember(self._queued, row["id"], None)

    def _call_durations(self, changes: list[Row]) -> dict[tuple[str | None, int], _CallDurations]:
        found: dict[tuple[str | None, int], _CallDurations] = {}
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
                    calls = found.setdefault((endpoint, row["code"]), _CallDurations())
                    calls.durations_s.append(max(row["timestamp_us"] - sent_us, 0) / 1e6)
        return found


def _count(grouped: _MetricGroups, word: str, rows: list[Row], first_us: int, last_us: int) -> None:
    counts: dict[str | None, list[int]] = {}
    for row in rows:
        both = counts.setdefault(row.get("endpoint"), [0, 0])
        both[0] += 1
        both[1] += row["bytes"]
    for endpoint, both in counts.items():
        names = ((f"mesh.messages.{word}", "{message}"), (f"mesh.messages.{word}.bytes", "By"))
        for (name, unit), value in zip(names, both, strict=True):
            point = NumberDataPoint(
                start_time_unix_nano=first_us * 1000,
                time_unix_nano=last_us * 1000,
                as_int=value,
                attributes=attributes_of({"mesh.endpoint": endpoint}),
            )
            grouped.points("sum", name, unit, is_monotonic=True).append(point)


def _remember(known: OrderedDict[int, Any], number: int, value: Any) -> None:
    known[number] = value
    if len(known) > _PENDING_MAX:
        known.popitem(last=False)
