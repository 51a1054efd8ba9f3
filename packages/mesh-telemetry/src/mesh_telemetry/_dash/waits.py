"""The topic of the dashboard for waits and deadlocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mesh_telemetry._dash.page_queries import PageQueries, id_list

__all__ = ["find_cycles", "waits"]

_ROWS_MAX = 2000


def waits(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the pending calls, longest wait first, and the deadlocks among them."""
    count, rows = queries.rows_of_all(
        ("select count(*) as n from waits",),
        (
            "select actor_id, actor, running, since_us, endpoint, for_actor_id, for_proc, host,"
            f" proc from waits order by since_us nulls last, proc, call limit {_ROWS_MAX}",
        ),
    )
    ids = {row["for_actor_id"] for row in rows} | {row["actor_id"] for row in rows} - {None}
    named = queries.rows(
        f"select id, display_name, rank from actors where id in ({id_list(sorted(ids))})"
    )
    names = {row["id"]: f"{row['display_name']}[{row['rank']}]" for row in named}
    for row in rows:
        row["name"] = names.get(row["actor_id"], row["actor"])
        row["for_name"] = names.get(row["for_actor_id"])
    edges = [(row["actor_id"], row["for_actor_id"]) for row in rows if row["actor_id"]]
    return {
        "count": count[0]["n"],
        "rows": rows,
        "deadlocks": [
            [{"id": one, "name": names.get(one, one)} for one in cycle]
            for cycle in find_cycles(edges)
        ],
    }


def find_cycles(edges: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Find cycles: one for each set of nodes that can all reach each other.

    Example:
        >>> find_cycles([("a", "b"), ("b", "c"), ("c", "b"), ("d", "d")])
        [['b', 'c'], ['d']]
    """
    following: dict[str, list[str]] = {}
    for source, target in edges:
        following.setdefault(source, []).append(target)
    found: list[list[str]] = []
    is_done: set[str] = set()
    for start in sorted(following):
        path: list[str] = []
        at_depth: dict[str, int] = {}
        ahead = [iter([start])]
        while ahead:
            node = next(ahead[-1], None)
            if node is None:
                ahead.pop()
                if path:
                    left = path.pop()
                    del at_depth[left]
                    is_done.add(left)
            elif node in at_depth:
                found.append(path[at_depth[node] :])
            elif node not in is_done:
                at_depth[node] = len(path)
                path.append(node)
                ahead.append(iter(following.get(node, ())))
    return [rotated_to_least(cycle) for cycle in _disjoint(found)]


def rotated_to_least(cycle: list[str]) -> list[str]:
    """Rotate a cycle so that it begins with its smallest element."""
    at = cycle.index(min(cycle))
    return cycle[at:] + cycle[:at]


def _disjoint(found: list[list[str]]) -> list[list[str]]:
    """Of cycles that share a node, keep only the first."""
    taken: set[str] = set()
    left = []
    for cycle in found:
        if taken.isdisjoint(cycle):
            taken.update(cycle)
            left.append(cycle)
    return left
