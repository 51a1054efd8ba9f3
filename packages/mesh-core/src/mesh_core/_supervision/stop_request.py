"""Stopping a mesh because somebody asks who has not spawned it: a person who looks on."""

from __future__ import annotations

import threading
import traceback

from mesh_core._program.runtime import is_running, runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._calls.future import Future

__all__ = ["stop_owned"]


def stop_owned(mesh_id: int, reason: str) -> str:
    """Stops a mesh that this process owns, as its owner would; waits for nothing.

    What is queued is served and the actors clean up. Whoever calls them later, or still waits when
    they end, gets `MeshStopped` with the reason. What goes wrong on the way is printed. Until the
    mesh has ended, twice is the same as once.

    Args:
        mesh_id: The number of the mesh in its job, as `spawned` events have it.
        reason: Who has asked, and why; in the errors that callers get.

    Returns:
        The name of the mesh.

    Raises:
        LookupError: This process owns no such mesh.

    Example:
        >>> stop_owned(event.actor, "the night shift is over")  # doctest: +SKIP
        'trainers'
    """
    owned = runtime().ownership.owned() if is_running() else []
    for mesh in owned:
        if mesh._uid == mesh_id:
            _stop(mesh, reason)
            return mesh._name
    raise LookupError(f"this process owns no mesh {mesh_id}: it has ended, or another one does")


def _stop(mesh: Any, reason: str) -> None:
    end = mesh._begin_stop(reason)
    # Somebody has to see to the end: the owner may never ask for it.
    threading.Thread(target=_wait, args=(end,), name="mesh-stop-request", daemon=True).start()


def _wait(end: Future[None]) -> None:
    error = end.exception()
    if error is not None:
        traceback.print_exception(error)
