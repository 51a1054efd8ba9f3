"""The topic of the dashboard for waits and deadlocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mesh_telemetry._dash.page_queries import PageQueries, id_list

__all__ = ["circles", "waits"]

_ROWS_MAX = 2000


def waits(queries: PageQueries, said: Mapping[str, str]) -> dict[str, Any]:
    """Return the pending answers, longest wait first, and the deadlocks among them."""
    count, rows = queries.together(
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
        "circles": [
            [{"id": one, "name": names.get(one, one)} for one in circle]
            for circle in circles(edges)
        ],
    }


def circles(edges: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Find cycles: one for each set of nodes that can all reach each other.

    Example:
        >>> circles([("a", "b"), ("b", "c"), ("c", "b"), ("d", "d")])
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
    return [sorted_from_least(circle) for circle in _apart(found)]


def sorted_from_least(circle: list[str]) -> list[str]:
    """Rotate a cycle so that it begins with its smallest element."""
    at = circle.index(min(circle))
    return circle[at:] + circle[:at]


def _apart(found: list[list[str]]) -> list[list[str]]:
    """Of cycles that share a node, keep only the first."""
    taken: set[str] = set()
    left = []
    for circle in found:
        if taken.isdisjoint(circle):
            taken.update(circle)
            left.append(circle)
    return left
