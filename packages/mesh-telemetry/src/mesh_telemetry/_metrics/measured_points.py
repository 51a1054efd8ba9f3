"""Data points from the measurements of the program."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mesh_telemetry._metrics.points import HistogramPoint, NumberPoint
from mesh_telemetry._rows.attributes import json_attributes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from mesh_telemetry._metrics.points import Point

    Row = dict[str, Any]

__all__ = ["MEASUREMENT_TABLES", "measured_points"]

#: The tables that `measured_points` reads.
MEASUREMENT_TABLES = ("metric_gauges", "metric_sums", "metric_histograms")


def measured_points(tables: Mapping[str, list[Row]]) -> list[Point]:
    """Return a data point for each row of the measurement tables.

    Args:
        tables: The rows of `MEASUREMENT_TABLES`, by table.
    """
    found: list[Point] = []
    for row in tables["metric_gauges"]:
        found.append(NumberPoint(**_shared(row), value=_number(row, "value")))
    for row in tables["metric_sums"]:
        found.append(
            NumberPoint(
                **_shared(row),
                value=_number(row, "sum"),
                is_sum=True,
                is_monotonic=bool(row["is_monotonic"]),
            )
        )
    for row in tables["metric_histograms"]:
        found.append(
            HistogramPoint(
                **_shared(row),
                count=row["count"],
                sum=row["sum_f64"],
                min=row["min_f64"],
                max=row["max_f64"],
                bounds=tuple(json.loads(row["bounds_json"])),
                bucket_counts=tuple(json.loads(row["bucket_counts_json"])),
            )
        )
    return found


def _shared(row: Row) -> dict[str, Any]:
    return {
        "name": row["name"],
        "unit": row["unit"],
        "at_us": row["timestamp_us"],
        "start_us": row["start_timestamp_us"] or row["timestamp_us"],
        "attributes": json_attributes(row["attributes_json"]),
        "actor_id": row["actor_id"],
    }


def _number(row: Row, name: str) -> int | float:
    integer: int | None = row[f"{name}_i64"]
    real: float = row[f"{name}_f64"]
    return real if integer is None else integer
