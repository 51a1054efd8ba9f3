"""Encoding of results as JSON."""

from __future__ import annotations

import base64
import math
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from typing import TYPE_CHECKING, Any

from mesh_telemetry._query.query_request import plain_coverage

if TYPE_CHECKING:
    from mesh_telemetry._query.coverage import QueryResult

__all__ = ["plain_result"]


def plain_result(result: QueryResult) -> dict[str, Any]:
    """Return a result as an object for JSON with columns, rows and coverage."""
    rows = [
        {name: _json_value(value) for name, value in row.items()}
        for row in result.table.to_pylist()
    ]
    columns = result.table.column_names
    return {"columns": columns, "rows": rows, "coverage": plain_coverage(result.coverage)}


def _json_value(value: Any) -> Any:
    """Return a value for JSON: text for types that JSON lacks, and null for NaN."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    if isinstance(value, date | time_of_day):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list | tuple):
        return [_json_value(each) for each in value]
    if isinstance(value, dict):
        return {str(name): _json_value(each) for name, each in value.items()}
    return str(value)
