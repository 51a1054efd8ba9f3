"""Converts data points of metrics to OTLP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
)

from mesh_telemetry._metrics.measured_points import MEASUREMENT_TABLES, measured_points
from mesh_telemetry._metrics.message_points import MESSAGE_POINT_TABLES, MessagePoints
from mesh_telemetry._metrics.points import HistogramPoint, NumberPoint
from mesh_telemetry._otlp.requests import Item, attributes_of, resource_of

if TYPE_CHECKING:
    from mesh_telemetry._events.proc_folder import ProcIdentity
    from mesh_telemetry._metrics.points import Point
    from mesh_telemetry._otlp.options import OtlpConfig
    from mesh_telemetry._rows.segment_tail import NewRows

__all__ = ["METRIC_TABLES", "MetricConverter", "dropped_metric"]

METRIC_TABLES = (*MEASUREMENT_TABLES, *MESSAGE_POINT_TABLES)
_DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
_POINTS_MAX = 500


class MetricConverter:
    """Converts rows to metrics.

    Args:
        config: The attributes of all processes.
    """

    def __init__(self, config: OtlpConfig) -> None:
        self._config = config
        self._messages: dict[str, MessagePoints] = {}

    def convert(
        self, new_rows: Sequence[NewRows], identities: dict[str, ProcIdentity], is_last: bool
    ) -> list[Item]:
        """Return the metrics of each process."""
        found = []
        for one in new_rows:
            resource = resource_of(self._config, one.folder.identity)
            name = one.folder.path.name
            messages = self._messages.setdefault(name, MessagePoints())
            points = measured_points(one.tables) + messages.points_of(one.tables)
            found += [Item(resource, metric) for metric in _metrics(points)]
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


def _metrics(points: Sequence[Point]) -> list[Metric]:
    """Group data points by metric, with a limited number of points for each message."""
    found: list[Metric] = []
    opened: dict[tuple[Any, ...], Metric] = {}
    for point in points:
        is_monotonic = isinstance(point, NumberPoint) and point.is_monotonic
        kind = _kind(point)
        key = (kind, point.name, point.unit, is_monotonic)
        metric = opened.get(key)
        if metric is None or len(getattr(metric, kind).data_points) >= _POINTS_MAX:
            metric = opened[key] = Metric(name=point.name, unit=point.unit)
            found.append(metric)
            if kind != "gauge":
                getattr(metric, kind).aggregation_temporality = _DELTA
            if kind == "sum":
                metric.sum.is_monotonic = is_monotonic
        getattr(metric, kind).data_points.append(_data_point(point))
    return found


def _kind(point: Point) -> str:
    if isinstance(point, HistogramPoint):
        return "histogram"
    return "sum" if isinstance(point, NumberPoint) and point.is_sum else "gauge"


def _data_point(point: Point) -> NumberDataPoint | HistogramDataPoint:
    attributes = dict(point.attributes)
    if point.actor_id is not None:
        attributes["mesh.actor_id"] = str(point.actor_id)
    shared: dict[str, Any] = {
        "start_time_unix_nano": (point.start_us or 0) * 1000,
        "time_unix_nano": point.at_us * 1000,
        "attributes": attributes_of(attributes),
    }
    if isinstance(point, HistogramPoint):
        return HistogramDataPoint(
            **shared,
            count=point.count,
            sum=point.sum,
            min=point.min,
            max=point.max,
            explicit_bounds=point.bounds,
            bucket_counts=point.bucket_counts,
        )
    assert isinstance(point, NumberPoint), "there are two kinds"
    if isinstance(point.value, int):
        return NumberDataPoint(**shared, as_int=point.value)
    return NumberDataPoint(**shared, as_double=point.value)
