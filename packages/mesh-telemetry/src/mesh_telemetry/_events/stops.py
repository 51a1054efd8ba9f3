"""Stopping a mesh on request: in the process that owns it, and how a host has it do so."""

from __future__ import annotations

import json

from mesh_core.spi import stop_owned
from mesh_telemetry._events.door import STOP, ask_all
from mesh_telemetry._events.proc_folder import proc_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

__all__ = ["BY_LEN_MAX", "ask_to_stop", "stop_here"]

#: How long the name of who asks may be: it travels with the request.
BY_LEN_MAX = 64
_ANSWER_S = 5.0


def stop_here(request: str, own: Container[int]) -> dict[str, str]:
    """Stops a mesh that this process owns, and says which, or why not.

    Args:
        request: JSON with the number of the mesh, and who asks.
        own: Meshes of telemetry itself, which only its end stops.

    Returns:
        `name`, or `refused` and a `code` for it.
    """
    mesh_id, by = json.loads(request)
    if mesh_id in own:
        why = f"mesh {mesh_id} is telemetry's own: close the telemetry in the program instead"
        return {"code": "own", "refused": why}
    try:
        return {"name": stop_owned(mesh_id, f"stopped by request of {by}")}
    except LookupError as error:
        return {"code": "not_found", "refused": str(error)}


def ask_to_stop(host_folder: Path, slot: int, mesh_id: int, by: str) -> dict[str, str]:
    """Has a process of a host stop a mesh that it owns.

    Args:
        host_folder: Where the processes of the host have their folders.
        slot: The place of the process on the host.
        mesh_id: The number of the mesh.
        by: Who asks.

    Returns:
        What `stop_here` says there.
    """
    found = [one for one in proc_folders(host_folder, None) if one.is_alive]
    paths = [one.path for one in found if one.place.slot == slot]
    if not paths:
        why = "the process that owns the mesh is not recorded: it has ended"
        return {"code": "not_found", "refused": why}
    answers = ask_all(paths, f"{STOP} {json.dumps([mesh_id, by])}", _ANSWER_S)
    for answer in answers.values():
        return dict(answer)
    why = f"the process that owns the mesh has not answered in {_ANSWER_S:g} s: ask again"
    return {"code": "silent", "refused": why}
