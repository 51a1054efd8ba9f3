"""The topic of the dashboard for the graph of meshes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mesh_telemetry._dash.meshes import FAILURES_BY_MESH
from mesh_telemetry._dash.page_queries import PageQueries

__all__ = ["graph", "group_names"]

_MESHES_MAX = 20_000
_NODES_MAX = 60
_EDGES_MAX = 400
# This many meshes of one class, or more, are shown as one node if they have the same spawner.
_GROUP_LEN_MIN = 4


def graph(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the busiest meshes, their spawn relations, and the messages between them.

    Many meshes of one class with the same spawner are one node.
    """
    rows, sent, procs = queries.rows_of_all(
        (
            "select id, class, given_name, size, parent_mesh_id, owner_mesh_id,"
            f" coalesce(f.n, 0) as failures from meshes left join {FAILURES_BY_MESH} f"
            f" on f.mesh_id = meshes.id order by timestamp_us, id limit {_MESHES_MAX}",
        ),
        _sent_query(queries),
        ("select host, proc, mesh_id, mesh from procs group by host, proc, mesh_id, mesh",),
    )
    nodes, node_of = _grouped(rows)
    mesh_of = {(row["host"], row["proc"]): row["mesh_id"] for row in procs}
    totals: dict[tuple[str, str], int] = {}
    for row in sent:
        source = node_of.get(row["from_mesh_id"] or mesh_of.get((row["host"], row["proc"])))
        target = node_of.get(row["actor_mesh_id"])
        if source is not None and target is not None:
            totals[source, target] = totals.get((source, target), 0) + row["n"]
    shown = _most_important(nodes, totals)
    edges = sorted(
        (edge for edge in totals if edge[0] != edge[1] and {*edge} <= shown),
        key=lambda edge: -totals[edge],
    )
    return {
        "mesh_count": len(rows),
        "hidden_count": len(nodes) - len(shown - {"0"}),
        "nodes": [node for node in nodes if node["id"] in shown],
        "edges": [[*edge, totals[edge]] for edge in edges[:_EDGES_MAX]],
        "sender_is_known": queries.has("sent_messages", "sender_actor_id"),
    }


def _grouped(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str | None, str]]:
    """Return the nodes, and the node of each mesh; node 0 is the program.

    A mesh comes after its spawner, so that the group of the spawner is known.
    """
    group_of: dict[str | None, int] = {}
    numbers: dict[tuple[str, int | None, int | None], int] = {}
    members: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        spawners = group_of.get(row["parent_mesh_id"]), group_of.get(row["owner_mesh_id"])
        number = numbers.setdefault((row["class"], *spawners), len(numbers))
        group_of[row["id"]] = number
        members.setdefault(number, []).append(row)
    nodes = []
    node_of: dict[str | None, str] = {"0": "0"}
    for group in members.values():
        parts = [group] if len(group) >= _GROUP_LEN_MIN else [[row] for row in group]
        for part in parts:
            node = _node(part)
            nodes.append(node)
            node_of.update({row["id"]: node["id"] for row in part})
    for node in nodes:
        node["parents"] = sorted(
            {node_of.get(one, "0") for one in node["parents"]} - {node["id"]}
        ) or ["0"]
    return nodes, node_of


def _node(part: list[dict[str, Any]]) -> dict[str, Any]:
    # A node links to a failed mesh if it contains one.
    first = max(part, key=lambda row: bool(row["failures"]))
    return {
        "id": first["id"],
        "name": group_names([row["given_name"] for row in part]),
        "class": first["class"],
        "meshes": len(part),
        "ranks": sum(row["size"] for row in part),
        "failed": sum(bool(row["failures"]) for row in part),
        "parents": {row["parent_mesh_id"] or row["owner_mesh_id"] for row in part} - {None},
    }


def group_names(names: list[str]) -> str:
    """Return the common start of names, or the single name.

    Example:
        >>> group_names(["shard-1", "shard-2"])
        'shard-…'
    """
    if len(set(names)) == 1:
        return names[0]
    least, most = min(names), max(names)
    length = next((at for at, sign in enumerate(least) if sign != most[at]), len(least))
    return least[:length] + "…"


def _most_important(nodes: list[dict[str, Any]], totals: Mapping[tuple[str, str], int]) -> set[str]:
    """Return the nodes to show: failed, then by messages, then by ranks; and their parents."""
    messages: dict[str, int] = {}
    for edge, total in totals.items():
        for one in edge:
            messages[one] = messages.get(one, 0) + total
    order = sorted(
        nodes, key=lambda node: (not node["failed"], -messages.get(node["id"], 0), -node["ranks"])
    )
    shown = {"0"}
    parents = {node["id"]: node["parents"] for node in nodes}
    ahead = [node["id"] for node in order[:_NODES_MAX]]
    while ahead:
        one = ahead.pop()
        if one not in shown:
            shown.add(one)
            ahead.extend(parents[one])
    return shown


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
