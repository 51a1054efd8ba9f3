"""The HTTP route that stops a mesh of the program."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from mesh_core import MeshError
from mesh_telemetry._errors import cause_of
from mesh_telemetry._events.stops import BY_LEN_MAX
from mesh_telemetry._serve.routes import (
    Reply,
    Request,
    RequestError,
    Route,
    json_reply,
    known_route,
)

if TYPE_CHECKING:
    from typing import Any

    from mesh_telemetry._hosts.coordinator import Coordinator

__all__ = ["action_routes"]

_LIMIT_S = 10.0
_PROC = re.compile(r"(\d{1,9})\.(\d{1,9})")
_STATUSES = {"own": 403, "not_found": 404, "silent": 504}


def action_routes(coordinator: Coordinator) -> list[Route]:
    """Return the route `POST /stop`.

    A request has `mesh_id` and `proc` with the values of `meshes.id` and `meshes.proc`, and `by`
    with the name of the requester. The response is sent when the owner has begun to stop the mesh.
    """

    def stop(request: Request) -> Reply:
        mesh_id, host, slot, by = _wanted(request.json_object())
        reply = _stop_on_host(coordinator, host, slot, mesh_id, by)
        if "refused" in reply:
            raise RequestError(_STATUSES[reply["code"]], reply["code"], reply["refused"])
        return json_reply({"mesh_id": mesh_id, "name": reply["name"], "state": "stopping"})

    return [known_route("POST", "/stop", stop)]


def _wanted(body: dict[str, Any]) -> tuple[int, int, int, str]:
    mesh_id, proc, by = body.get("mesh_id"), body.get("proc"), body.get("by", "the user")
    if not isinstance(mesh_id, int) or isinstance(mesh_id, bool) or not 0 <= mesh_id < 1 << 64:
        raise RequestError(400, "bad_json", "missing or invalid mesh_id: send a meshes.id")
    match = _PROC.fullmatch(proc) if isinstance(proc, str) else None
    if match is None:
        text = "missing or invalid proc: send the meshes.proc of the mesh, such as 0.3"
        raise RequestError(400, "bad_json", text)
    if not (isinstance(by, str) and by.isascii() and by.isprintable() and len(by) <= BY_LEN_MAX):
        text = f"invalid by: send a name of at most {BY_LEN_MAX} printable ASCII characters"
        raise RequestError(400, "bad_json", text)
    if mesh_id == 0:
        text = "mesh 0 is the program and its host agents: end the program instead"
        raise RequestError(403, "root", text)
    return mesh_id, int(match[1]), int(match[2]), by


def _stop_on_host(
    coordinator: Coordinator, host: int, slot: int, mesh_id: int, by: str
) -> dict[str, str]:
    deadline = time.monotonic() + _LIMIT_S
    try:
        for handle in coordinator.hosts.call_one().get(_LIMIT_S):
            if handle.number == host:
                if handle.rows is None:
                    break
                future = handle.rows.stop_mesh.call_one(slot, mesh_id, by)
                return future.get(max(deadline - time.monotonic(), 0.0))
        else:
            return {"code": "not_found", "refused": f"the program has no host {host}"}
    except TimeoutError:
        pass
    except MeshError as error:
        return {"code": "silent", "refused": f"host {host} did not reply: {cause_of(error)}"}
    return {"code": "silent", "refused": f"host {host} did not reply: try again later"}
