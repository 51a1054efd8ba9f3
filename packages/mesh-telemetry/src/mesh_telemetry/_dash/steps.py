"""The topic of the dashboard for training steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mesh_telemetry._dash.page_queries import Arguments, PageQueries
from mesh_telemetry._steps.heat_map import heat_map, trained_meshes

__all__ = ["steps"]

_RANKS_MAX = 2048


def steps(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the meshes that have trained, and the heat map of one of them.

    The argument `mesh` selects the mesh; the default is the mesh that trained most recently.
    """
    meshes = trained_meshes(queries.rows)
    mesh = Arguments(parameters).text("mesh") or next(iter(meshes), "")
    found = heat_map(queries.rows, mesh)
    # The slowest ranks are shown if there are too many.
    slowest = sorted(found.ranks, key=lambda one: -one.delay)[:_RANKS_MAX]
    return {
        "meshes": meshes,
        "mesh": mesh,
        "steps": found.steps,
        "rank_count": len(found.ranks),
        "ranks": [
            {
                **one._asdict(),
                "delay": round(one.delay, 4),
                "delays": [None if each is None else round(each, 3) for each in one.delays],
            }
            for one in sorted(slowest, key=lambda one: one.rank)
        ],
    }
