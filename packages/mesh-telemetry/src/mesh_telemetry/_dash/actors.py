"""Topics of the dashboard for hosts, processes and actors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from mesh_telemetry._dash.page_queries import Arguments, PageQueries, pattern

__all__ = ["actor", "actors", "hosts", "procs", "stacks"]

_ROWS_MAX = 50
_HOSTS_MAX = 10_000
_FRAMES_MAX = 5000


def hosts(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the hosts with processes; hosts on one machine differ in their number."""
    rows = queries.rows(
        "select host, split_part(proc, '.', 1) as number, count(*) as procs,"
        " count(*) filter (where state = 'dead') as dead from procs"
        f" group by host, split_part(proc, '.', 1) order by host, number limit {_HOSTS_MAX}"
    )
    return {"rows": rows}


def procs(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of the processes of `host` and `number`, each with its number of actors."""
    arguments = Arguments(parameters)
    where, values = _host_condition(arguments)
    count, rows, held = queries.rows_of_all(
        (f"select count(*) as n from procs where {where}", *values),
        (
            "select host, proc, mesh, mesh_id, rank, incarnation, pid, state, cpu_s, rss_bytes,"
            f" threads, kept_bytes from procs where {where} order by mesh, rank, proc"
            f" {arguments.page().sql}",
            *values,
        ),
        (f"select proc, count(*) as n from actors where {where} group by proc", *values),
    )
    actors_of = {row["proc"]: row["n"] for row in held}
    for row in rows:
        row["actors"] = actors_of.get(row["proc"], 0)
    return {"count": count[0]["n"], "rows": rows}


def actors(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of actors with `text` in name or class, optionally of one `host` and `proc`."""
    arguments = Arguments(parameters)
    where, values = "(display_name ilike $1 or class ilike $1 or full_name ilike $1)", []
    values.append(pattern(arguments.text("text")))
    for column in ("host", "proc"):
        if arguments.has(column):
            values.append(arguments.text(column))
            where += f" and {column} = ${len(values)}"
    count, rows = queries.rows_of_all(
        (f"select count(*) as n from actors where {where}", *values),
        (
            "select id, display_name, class, rank, mesh_id, full_name, host, proc from actors"
            f" where {where} order by display_name, rank, id {arguments.page().sql}",
            *values,
        ),
    )
    return {"count": count[0]["n"], "rows": rows}


def actor(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the details of one actor, given by its `id` or by its `mesh` and `rank`."""
    arguments = Arguments(parameters)
    if arguments.has("mesh"):
        rank = pa.scalar(arguments.number("rank", 0, 2**63 - 1), pa.uint64())
        found = queries.rows(
            "select * from actors where mesh_id = $1 and rank = $2 order by timestamp_us desc"
            " limit 1",
            arguments.id("mesh"),
            rank,
        )
    else:
        found = queries.rows("select * from actors where id = $1 limit 1", arguments.id("id"))
    if not found:
        return {"actor": None}
    row = found[0]
    ident = pa.scalar(int(row["id"]), pa.uint64())
    statuses, received, counts, spans, lines, waits, awaited, nodes = queries.rows_of_all(
        (
            "select timestamp_us, new_status, reason from actor_status_events where actor_id = $1"
            f" order by timestamp_us desc limit {_ROWS_MAX}",
            ident,
        ),
        (_messages(queries), ident),
        ("select count(*) as n from messages where to_actor_id = $1", ident),
        (
            "select id, timestamp_us, name, fields_json from spans where actor_id = $1"
            f" order by timestamp_us desc limit {_ROWS_MAX}",
            ident,
        ),
        (
            "select timestamp_us, stream, line from logs where host = $1 and proc = $2"
            f" order by timestamp_us desc limit {_ROWS_MAX}",
            row["host"],
            row["proc"],
        ),
        (
            "select w.*, a.display_name as for_name, a.rank as for_rank from waits w left join"
            f" actors a on a.id = w.for_actor_id where w.actor_id = $1 limit {_ROWS_MAX}",
            ident,
        ),
        (f"select * from waits where for_actor_id = $1 limit {_ROWS_MAX}", ident),
        (
            "select actor_status, last_message_handler, messages_processed, queue_depth"
            " from actor_nodes where id = $1 limit 1",
            ident,
        ),
    )
    return {
        "actor": row,
        "statuses": statuses,
        "messages": received,
        "message_count": counts[0]["n"],
        "spans": spans,
        "logs": lines,
        "waits": waits,
        "awaited": awaited,
        "now": nodes[0] if nodes else None,
    }


def stacks(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the current stacks of the threads of `proc` on `host`, innermost frame first."""
    arguments = Arguments(parameters)
    rows = queries.rows(
        "select thread, thread_id, depth, function, file, line from stacks"
        f" where host = $1 and proc = $2 order by thread_id, depth limit {_FRAMES_MAX}",
        arguments.text("host"),
        arguments.text("proc"),
    )
    return {"rows": rows}


def _messages(queries: PageQueries) -> str:
    endpoint = "m.endpoint" if queries.has("messages", "endpoint") else "cast(null as varchar)"
    return (
        f"select m.id, m.timestamp_us, m.from_proc, m.bytes, {endpoint} as endpoint"
        f" from messages m where m.to_actor_id = $1 order by m.timestamp_us desc limit {_ROWS_MAX}"
    )


def _host_condition(arguments: Arguments) -> tuple[str, list[str]]:
    return "host = $1 and split_part(proc, '.', 1) = $2", [
        arguments.text("host"),
        arguments.text("number"),
    ]
