"""Topics of the dashboard for printed lines, spans and messages over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mesh_telemetry._dash.page_queries import Arguments, PageQueries, id_list, pattern
from mesh_telemetry._serve.routes import RequestError

__all__ = ["logs", "timeline"]

_LINES = 500
_LINES_MAX = 2000
_ACTORS_MAX = 20
_ITEMS_MAX = 3000
_TIME_MAX = 2**62
#: Patterns of lines with at least this severity.
_SEVERITIES = {
    "": "",
    "warning": r"\b(warn|warning|\w*error|critical|fatal|\w*exception|traceback)\b",
    "error": r"\b(\w*error|critical|fatal|\w*exception|traceback)\b",
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


def timeline(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return spans and messages of some `actors` between `since` and `until`, latest first.

    Without `actors`, the actors with the most spans and messages are chosen.
    """
    arguments = Arguments(parameters)
    chosen = arguments.ids("actors", _ACTORS_MAX) or _busiest(queries)
    since = arguments.number("since", 0, _TIME_MAX)
    until = arguments.number("until", _TIME_MAX, _TIME_MAX)
    ids = id_list(chosen)
    within = f"timestamp_us >= {since} and timestamp_us <= {until}"
    named, spans, messages = queries.rows_of_all(
        (
            "select id, display_name, rank, mesh_id, host, proc from actors"
            f" where id in ({ids}) order by display_name, rank, id",
        ),
        (
            "select process_id, id, name, actor_id, fields_json, timestamp_us from spans"
            f" where actor_id in ({ids}) and {within}"
            f" order by timestamp_us desc limit {_ITEMS_MAX}",
        ),
        (
            "select id, to_actor_id as actor_id, timestamp_us, bytes, from_proc from messages"
            f" where to_actor_id in ({ids}) and {within}"
            f" order by timestamp_us desc limit {_ITEMS_MAX}",
        ),
    )
    ends = {}
    if spans:
        first_us = min(row["timestamp_us"] for row in spans)
        ends = {
            (row["process_id"], row["id"]): row
            for row in queries.rows(
                "select process_id, id, timestamp_us, is_error from span_events"
                f" where event_type = 'close' and timestamp_us >= {first_us}"
                f" and id in ({id_list([row['id'] for row in spans])})"
            )
        }
    for row in spans:
        end = ends.get((row["process_id"], row["id"]))
        row["end_us"] = None if end is None else end["timestamp_us"]
        row["is_error"] = end is not None and end["is_error"]
        del row["process_id"]
    is_cut = len(spans) == _ITEMS_MAX or len(messages) == _ITEMS_MAX
    return {"actors": named, "spans": spans, "messages": messages, "is_cut": is_cut}


def _busiest(queries: PageQueries) -> list[int]:
    by_spans, by_messages = queries.rows_of_all(
        (
            "select actor_id, count(*) as n from spans where actor_id is not null"
            " group by actor_id order by n desc, actor_id limit 8",
        ),
        (
            "select to_actor_id as actor_id, count(*) as n from messages group by to_actor_id"
            " order by n desc, to_actor_id limit 20",
        ),
    )
    known = queries.rows(
        "select id from actors where id in"
        f" ({id_list([row['actor_id'] for row in (*by_spans, *by_messages)])})"
    )
    is_known = {row["id"] for row in known}
    order = dict.fromkeys(row["actor_id"] for row in (*by_spans, *by_messages))
    return [int(one) for one in order if one in is_known][:8]
