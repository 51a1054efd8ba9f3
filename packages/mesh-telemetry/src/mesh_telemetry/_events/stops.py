"""Stopping a mesh on request, in the process that owns it and from its host."""

from __future__ import annotations

import json

from mesh_core.spi import stop_owned
from mesh_telemetry._events.proc_folder import proc_folders
from mesh_telemetry._events.process_socket import STOP, request_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

__all__ = ["BY_LEN_MAX", "request_stop", "stop_mesh"]

#: Limit for the name of the requester, which is sent with the request.
BY_LEN_MAX = 64
_REPLY_TIMEOUT_S = 5.0


def stop_mesh(request: str, own: Container[int]) -> dict[str, str]:
    """Stop a mesh that this process owns.

    Args:
        request: JSON with the number of the mesh and the name of the requester.
        own: Meshes of telemetry itself, which cannot be stopped on request.

    Returns:
        `name` of the mesh, or `refused` with the reason and its `code`.
    """
    mesh_id, by = json.loads(request)
    if mesh_id in own:
        text = f"mesh {mesh_id} belongs to telemetry: close the telemetry in the program instead"
        return {"code": "own", "refused": text}
    try:
        return {"name": stop_owned(mesh_id, f"stopped by request of {by}")}
    except LookupError as error:
        return {"code": "not_found", "refused": str(error)}


def request_stop(host_folder: Path, slot: int, mesh_id: int, by: str) -> dict[str, str]:
    """Request that a process of this host stops a mesh that it owns.

    Args:
        host_folder: The folder of the host.
        slot: The slot of the process on the host.
        mesh_id: The number of the mesh.
        by: The name of the requester.

    Returns:
        The result of `stop_mesh` in that process.
    """
    found = [one for one in proc_folders(host_folder, None) if one.is_alive]
    paths = [one.path for one in found if one.identity.slot == slot]
    if not paths:
        text = "the process that owns the mesh is not recorded or has exited"
        return {"code": "not_found", "refused": text}
    replies = request_all(paths, f"{STOP} {json.dumps([mesh_id, by])}", _REPLY_TIMEOUT_S)
    for reply in replies.values():
        return dict(reply)
    text = f"the process that owns the mesh did not reply within {_REPLY_TIMEOUT_S:g} s: try again"
    return {"code": "silent", "refused": text}
