"""One round of queries: the snapshot, and the actors of open branches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mesh_telemetry._top.entries import TreeModel
from mesh_telemetry._top.queries import ACTORS, ACTORS_LIKE
from mesh_telemetry._top.snapshot import take_snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mesh_telemetry._serve.program_client import ProgramClient
    from mesh_telemetry._top.entries import Key, View
    from mesh_telemetry._top.snapshot import Row, Snapshot

__all__ = ["fetch_model"]

_FAILED_FIRST = "coalesce(e.state, '') not in ('failed', 'lost')"


def fetch_model(
    client: ProgramClient, before: Snapshot | None, view: View, open_branches: Mapping[Key, int]
) -> TreeModel:
    """Query the visible data of a program.

    Args:
        client: The program.
        before: The previous snapshot.
        view: The selection and order.
        open_branches: Open branches with actors, and how many of each are shown.

    Raises:
        ProgramUnavailable: The program has exited or has stopped serving.
        TelemetryError: The program does not respond.
    """
    snapshot = take_snapshot(client, before)
    found: tuple[frozenset[str], frozenset[int]] = (frozenset(), frozenset())
    if view.wanted:
        rows = client.query(ACTORS_LIKE, [_pattern(view)])["rows"]
        procs, meshes = (frozenset(row[by] for row in rows) for by in ("proc", "mesh_id"))
        found = (procs, meshes)
    actors = {
        key: _actors(client, snapshot, view, key, len_max) for key, len_max in open_branches.items()
    }
    return TreeModel(snapshot, actors, view.wanted, found)


def _actors(
    client: ProgramClient, snapshot: Snapshot, view: View, key: Key, len_max: int
) -> list[Row]:
    kind, which = key
    of = "proc = $1" if kind == "proc" else "mesh_id = $1"
    params: list[object] = [which if kind == "proc" else int(which)]
    where = of
    if view.wanted and kind == "proc" and not _is_named(snapshot, which, view):
        where += " and (lower(display_name) like $2 or lower(class) like $2)"
        params.append(_pattern(view))
    order = "a.display_name, a.mesh_id, a.rank" if kind == "proc" else "a.rank"
    sql = ACTORS.format(
        where=where,
        of=of,
        dead=snapshot.dead,
        order=f"{_FAILED_FIRST}, {order}",
        # One more row than is shown indicates that more exist.
        limit=len_max + 1,
        offset=0,
    )
    rows: list[Row] = client.query(sql, params)["rows"]
    return rows


def _is_named(snapshot: Snapshot, proc: str, view: View) -> bool:
    known = snapshot.procs.get(proc)
    return known is not None and view.wanted.lower() in str(known.row["mesh"]).lower()


def _pattern(view: View) -> str:
    return f"%{view.wanted.lower()}%"
