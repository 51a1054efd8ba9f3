"""The topic of the dashboard for calls and spans of actors over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mesh_telemetry._dash.page_queries import Arguments, PageQueries, id_list

__all__ = ["timeline"]

_ACTORS_MAX = 20
_ITEMS_MAX = 2000
_TIME_MAX = 2**62


def timeline(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return calls to some `actors` and their spans between `since` and `until`, latest first.

    Without `actors`, the actors with the most spans and messages are chosen.
    """
    arguments = Arguments(parameters)
    chosen = arguments.ids("actors", _ACTORS_MAX) or _busiest(queries)
    since = arguments.number("since", 0, _TIME_MAX)
    until = arguments.number("until", _TIME_MAX, _TIME_MAX)
    ids = id_list(chosen)
    within = f"timestamp_us >= {since} and timestamp_us <= {until}"
    named, spans, calls = queries.rows_of_all(
        (
            "select id, display_name, class, rank, mesh_id, host, proc from actors"
            f" where id in ({ids}) order by display_name, rank, id",
        ),
        (
            "select process_id, id, name, actor_id, fields_json, timestamp_us, message_id"
            f" from spans where actor_id in ({ids}) and {within}"
            f" order by timestamp_us desc limit {_ITEMS_MAX}",
        ),
        (
            "select id, to_actor_id as actor_id, timestamp_us, bytes, from_proc, from_actor_id,"
            " endpoint, call is not null as has_reply from messages"
            f" where to_actor_id in ({ids}) and {within}"
            f" order by timestamp_us desc limit {_ITEMS_MAX}",
        ),
    )
    _add_span_ends(queries, spans)
    _add_call_times(queries, calls)
    callers = {row["from_actor_id"] for row in calls} - {None, *(row["id"] for row in named)}
    others = queries.rows(
        "select id, display_name, rank from actors where id in"
        f" ({id_list(sorted(callers)[:_ITEMS_MAX])})"
    )
    return {
        "actors": named,
        "callers": {row["id"]: f"{row['display_name']}[{row['rank']}]" for row in others},
        "spans": spans,
        "calls": calls,
        "is_cut": len(spans) == _ITEMS_MAX or len(calls) == _ITEMS_MAX,
    }


def _add_span_ends(queries: PageQueries, spans: list[dict[str, Any]]) -> None:
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


def _add_call_times(queries: PageQueries, calls: list[dict[str, Any]]) -> None:
    """Add when each call began to be served, when it ended, and whether it failed."""
    times: dict[tuple[str, str], int] = {}
    if calls:
        first_us = min(row["timestamp_us"] for row in calls)
        times = {
            (row["message_id"], row["status"]): row["timestamp_us"]
            for row in queries.rows(
                "select message_id, status, timestamp_us from message_status_events"
                f" where timestamp_us >= {first_us}"
                " and status in ('active', 'complete', 'failed', 'refused')"
                f" and message_id in ({id_list([row['id'] for row in calls])})"
            )
        }
    for row in calls:
        failed_us = times.get((row["id"], "failed"), times.get((row["id"], "refused")))
        row["active_us"] = times.get((row["id"], "active"))
        row["end_us"] = times.get((row["id"], "complete"), failed_us)
        row["is_error"] = failed_us is not None


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
