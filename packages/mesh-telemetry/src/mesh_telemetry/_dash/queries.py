"""The topics of the dashboard: pages request them by name, and contain no SQL themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mesh_telemetry._dash.actors import actor, actors, hosts, procs, stacks
from mesh_telemetry._dash.calls import calls
from mesh_telemetry._dash.cases import case, cases
from mesh_telemetry._dash.lines import logs
from mesh_telemetry._dash.mesh_graph import graph
from mesh_telemetry._dash.meshes import classes, mesh, meshes
from mesh_telemetry._dash.overview import counts, overview
from mesh_telemetry._dash.page_queries import PageQueries, QueryFunction
from mesh_telemetry._dash.steps import steps
from mesh_telemetry._dash.timeline import timeline
from mesh_telemetry._dash.waits import waits
from mesh_telemetry._rows.schemas import LIVE_TABLES

__all__ = ["TOPICS", "PageQueries", "QueryFunction", "Topic"]

#: Returns a JSON value for the arguments of a request.
Topic = Callable[[PageQueries, Mapping[str, str]], dict[str, Any]]


def tables(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the tables with their columns, for users who write SQL."""
    rows = [
        {
            "name": name,
            "text": doc.text,
            "is_live": name in LIVE_TABLES,
            "columns": [
                {"name": column.name, "type": str(column.type), "text": column.text}
                for column in doc.columns
            ],
        }
        for name, doc in sorted(queries.docs.items())
    ]
    return {"rows": rows}


TOPICS: Mapping[str, Topic] = {
    "actor": actor,
    "actors": actors,
    "calls": calls,
    "case": case,
    "cases": cases,
    "classes": classes,
    "counts": counts,
    "graph": graph,
    "hosts": hosts,
    "logs": logs,
    "mesh": mesh,
    "meshes": meshes,
    "overview": overview,
    "procs": procs,
    "stacks": stacks,
    "steps": steps,
    "tables": tables,
    "timeline": timeline,
    "waits": waits,
}
