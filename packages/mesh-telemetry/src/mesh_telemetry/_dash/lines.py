"""The topic of the dashboard for printed lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mesh_telemetry._dash.page_queries import Arguments, PageQueries, pattern
from mesh_telemetry._serve.routes import RequestError

__all__ = ["ERROR_PATTERN", "logs"]

_LINES = 500
_LINES_MAX = 2000
_TIME_MAX = 2**62
#: Lines that report an error.
ERROR_PATTERN = r"\b(\w*error|critical|fatal|\w*exception|traceback)\b"
#: Patterns of lines with at least this severity.
_SEVERITIES = {
    "": "",
    "warning": r"\b(warn|warning|\w*error|critical|fatal|\w*exception|traceback)\b",
    "error": ERROR_PATTERN,
}


def logs(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the last lines with `text`, filtered by `mesh`, `proc`, `stream` and `severity`.

    With `before`, in microseconds since the epoch, only lines before that time are returned.
    """
    arguments = Arguments(parameters)
    where, values = ["line ilike $1"], [pattern(arguments.text("text"))]
    for column in ("mesh", "proc", "stream"):
        if arguments.has(column):
            values.append(arguments.text(column))
            where.append(f"{column} = ${len(values)}")
    severity = arguments.text("severity")
    if severity not in _SEVERITIES:
        raise RequestError(400, "bad_argument", "invalid severity: send warning or error")
    if severity:
        values.append(_SEVERITIES[severity])
        where.append(f"line ~* ${len(values)}")
    if arguments.has("before"):
        where.append(f"timestamp_us < {arguments.number('before', 0, _TIME_MAX)}")
    limit = arguments.number("limit", _LINES, _LINES_MAX)
    condition = " and ".join(where)
    count, rows, meshes = queries.rows_of_all(
        (f"select count(*) as n from logs where {condition}", *values),
        (
            "select timestamp_us, mesh, rank, stream, line, host, proc from logs"
            f" where {condition} order by timestamp_us desc limit {limit}",
            *values,
        ),
        ("select mesh, count(*) as n from logs group by mesh order by n desc limit 100",),
    )
    return {"count": count[0]["n"], "rows": rows[::-1], "meshes": [row["mesh"] for row in meshes]}
