"""Topics of the dashboard for meshes: a list, the ranks of one, and the graph of all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mesh_telemetry._dash.page_queries import Arguments, PageQueries, id_list, pattern

__all__ = ["graph", "mesh", "meshes"]

_RANKS_MAX = 100_000
_NODES_MAX = 60
_EDGES_MAX = 400
_FIELDS = (
    "id, timestamp_us, class, given_name, full_name, shape_json, size, parent_mesh_id,"
    " owner_mesh_id, host, proc"
)


def meshes(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of meshes whose name or class contains `text`, oldest first."""
    arguments = Arguments(parameters)
    wanted = pattern(arguments.text("text"))
    where = "where (given_name ilike $1 or class ilike $1)"
    count, rows = queries.rows_of_all(
        (f"select count(*) as n from meshes {where}", wanted),
        (
            f"select {_FIELDS} from meshes {where} order by timestamp_us, id"
            f" {arguments.page().sql}",
            wanted,
        ),
    )
    ids = id_list([row["id"] for row in rows])
    ended, failed = queries.rows_of_all(
        (
            "select mesh_id, new_status, count(distinct actor_id) as n from actor_status_events"
            f" where new_status <> 'running' and mesh_id in ({ids}) group by mesh_id, new_status",
        ),
        (f"select mesh_id, count(*) as n from failures where mesh_id in ({ids}) group by mesh_id",),
    )
    stopped = {row["mesh_id"]: row["n"] for row in ended if row["new_status"] == "stopped"}
    failures = {row["mesh_id"]: row["n"] for row in failed}
    for row in rows:
        row["stopped"] = stopped.get(row["id"], 0)
        row["failures"] = failures.get(row["id"], 0)
    return {"count": count[0]["n"], "rows": rows}


def mesh(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the mesh with a given `id`: its shape, and its ranks that are not simply running."""
    wanted = Arguments(parameters).id("id")
    found, latest, waiting, procs, failures = queries.rows_of_all(
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
            "select timestamp_us, kind, mesh, rank, reason, cause from failures where mesh_id = $1"
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


def graph(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the busiest meshes, their spawn relations, and the messages between them."""
    count, sent, procs, sizes = queries.rows_of_all(
        ("select count(*) as n from meshes",),
        _sent_query(queries),
        ("select host, proc, mesh_id, mesh from procs group by host, proc, mesh_id, mesh",),
        (f"select id from meshes order by size desc, timestamp_us limit {_NODES_MAX}",),
    )
    mesh_of = {(row["host"], row["proc"]): row["mesh_id"] for row in procs}
    totals: dict[tuple[str, str], int] = {}
    for row in sent:
        source = row["from_mesh_id"] or mesh_of.get((row["host"], row["proc"]))
        if source is not None:
            edge = (source, row["actor_mesh_id"])
            totals[edge] = totals.get(edge, 0) + row["n"]
    busiest = sorted(totals, key=lambda edge: -totals[edge])
    chosen = _first_ids([one for edge in busiest for one in edge] + [row["id"] for row in sizes])
    nodes = queries.rows(f"select {_FIELDS} from meshes where id in ({id_list(chosen)})")
    # The parents of a mesh are included.
    parents = {one for row in nodes for one in (row["parent_mesh_id"], row["owner_mesh_id"])}
    parents -= {None, *(row["id"] for row in nodes)}
    if parents:
        nodes += queries.rows(
            f"select {_FIELDS} from meshes where id in ({id_list(sorted(parents))})"
        )
    known = {row["id"] for row in nodes} | {"0"}
    edges = [edge for edge in busiest if edge[0] in known and edge[1] in known]
    return {
        "count": count[0]["n"],
        "nodes": sorted(nodes, key=lambda row: (row["timestamp_us"], row["id"])),
        "edges": [[*edge, totals[edge]] for edge in edges[:_EDGES_MAX]],
        "sender_is_known": queries.has("sent_messages", "sender_actor_id"),
    }


def _sent_query(queries: PageQueries) -> tuple[str]:
    """Return a query that counts messages from each process, or actor if known, to each mesh."""
    if queries.has("sent_messages", "sender_actor_id"):
        return (
            "select s.host, s.proc, a.mesh_id as from_mesh_id, s.actor_mesh_id, sum(s.n) as n"
            " from (select host, proc, sender_actor_id, actor_mesh_id, count(*) as n"
            " from sent_messages group by host, proc, sender_actor_id, actor_mesh_id) s"
            " left join actors a on a.id = s.sender_actor_id"
            " group by s.host, s.proc, a.mesh_id, s.actor_mesh_id order by n desc"
            f" limit {_EDGES_MAX * 10}",
        )
    return (
        "select host, proc, cast(null as bigint) as from_mesh_id, actor_mesh_id, count(*) as n"
        " from sent_messages group by host, proc, actor_mesh_id order by n desc"
        f" limit {_EDGES_MAX * 10}",
    )


def _first_ids(ids: list[str]) -> list[str]:
    return [one for one in dict.fromkeys(ids) if one != "0"][:_NODES_MAX]
