"""Topics of the dashboard for meshes: their classes, a list, and the ranks of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mesh_telemetry._dash.page_queries import Arguments, PageQueries, id_list, pattern

__all__ = ["FAILURES_BY_MESH", "classes", "mesh", "meshes"]

#: A subquery with the number of failures of each mesh that has failures.
FAILURES_BY_MESH = "(select mesh_id, count(*) as n from failures group by mesh_id)"
_RANKS_MAX = 100_000
_CLASSES_MAX = 1000
# At most this many ranks are shown with their process and their activity.
_PLACES_MAX = 512
_FIELDS = (
    "id, timestamp_us, class, given_name, full_name, shape_json, size, parent_mesh_id,"
    " owner_mesh_id, host, proc"
)


def meshes(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of meshes, those with failures first, otherwise oldest first.

    Their name or class contains `text`, and their class is `class` if it is present.
    """
    arguments = Arguments(parameters)
    where, values = "(given_name ilike $1 or class ilike $1)", [pattern(arguments.text("text"))]
    if arguments.has("class"):
        values.append(arguments.text("class"))
        where += " and class = $2"
    count, rows = queries.rows_of_all(
        (f"select count(*) as n from meshes where {where}", *values),
        (
            f"select {_FIELDS}, coalesce(f.n, 0) as failures from meshes"
            f" left join {FAILURES_BY_MESH} f on f.mesh_id = meshes.id where {where}"
            f" order by f.n is null, timestamp_us, id {arguments.page().sql}",
            *values,
        ),
    )
    ended = queries.rows(
        "select mesh_id, count(distinct actor_id) as n from actor_status_events"
        f" where new_status = 'stopped' and mesh_id in ({id_list([row['id'] for row in rows])})"
        " group by mesh_id"
    )
    stopped = {row["mesh_id"]: row["n"] for row in ended}
    for row in rows:
        row["stopped"] = stopped.get(row["id"], 0)
    return {"count": count[0]["n"], "rows": rows}


def classes(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the classes of meshes with their numbers of meshes, those with failures first."""
    rows = queries.rows(
        "select class, count(*) as meshes, sum(size) as ranks, count(f.n) as failed"
        f" from meshes left join {FAILURES_BY_MESH} f on f.mesh_id = meshes.id"
        f" group by class order by count(f.n) = 0, count(*) desc, class limit {_CLASSES_MAX}"
    )
    return {"count": sum(row["meshes"] for row in rows), "rows": rows}


def mesh(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the mesh with a given `id`: its shape, and its ranks that are not simply running."""
    wanted = Arguments(parameters).id("id")
    found, latest, waiting, procs, places, nodes, failures = queries.rows_of_all(
        (f"select {_FIELDS} from meshes where id = $1 limit 1", wanted),
        (
            "select rank, new_status, max(timestamp_us) as at from actor_status_events"
            f" where mesh_id = $1 group by rank, new_status limit {_RANKS_MAX}",
            wanted,
        ),
        (
            "select a.rank from waits w join actors a on a.id = w.actor_id"
            f" where a.mesh_id = $1 group by a.rank limit {_RANKS_MAX}",
            wanted,
        ),
        (
            "select rank, incarnation, state, pid, host, proc from procs where mesh_id = $1"
            f" order by rank, incarnation limit {_RANKS_MAX}",
            wanted,
        ),
        (
            "select rank, host, proc from actors where mesh_id = $1"
            f" order by rank limit {_PLACES_MAX}",
            wanted,
        ),
        (
            "select rank, actor_status, last_message_handler, messages_processed, queue_depth"
            f" from actor_nodes where mesh_id = $1 order by rank limit {_PLACES_MAX}",
            wanted,
        ),
        (
            "select timestamp_us, kind, mesh, mesh_id, rank, reason, cause from failures"
            " where mesh_id = $1"
            " order by timestamp_us desc limit 20",
            wanted,
        ),
    )
    if found and found[0]["class"] == "Proc":
        # If two processes had the same rank, the later one counts.
        states = {row["rank"]: "dead" if row["state"] == "dead" else "running" for row in procs}
    else:
        states = _states(latest)
    for row in waiting:
        if states.get(row["rank"]) == "running":
            states[row["rank"]] = "waiting"
    return {
        "mesh": found[0] if found else None,
        "started": len(states),
        "ranks": sorted((rank, state) for rank, state in states.items() if state != "running"),
        "places": [
            [row["rank"], row["host"], row["proc"]] for row in (*procs[:_PLACES_MAX], *places)
        ],
        "nodes": nodes,
        "failures": failures,
    }


def _states(latest: list[dict[str, Any]]) -> dict[int, str]:
    """Return the state of each rank from the last time of each status."""
    at: dict[int, dict[str, int]] = {}
    for row in latest:
        at.setdefault(row["rank"], {})[row["new_status"]] = row["at"]
    states = {}
    for rank, times in at.items():
        since = times.get("running", 0)
        # A failed actor is stopped afterwards, but its failure is more important.
        ended = [name for name in ("failed", "stopped") if times.get(name, -1) >= since]
        states[rank] = ended[0] if ended else "running"
    return states
