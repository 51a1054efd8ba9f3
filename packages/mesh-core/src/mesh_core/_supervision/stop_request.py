"""Stop of a mesh on request of a component that does not own it, such as a dashboard user."""

from __future__ import annotations

import threading
import traceback

from mesh_core._runtime.runtime import is_running, runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._calls.future import Future

__all__ = ["stop_owned"]


def stop_owned(mesh_id: int, reason: str) -> str:
    """Stop a mesh that this process owns, as its owner would; return without waiting.

    Actors serve their queued messages and run their cleanup. Later calls, and calls that are still
    waiting when the actors end, raise `MeshStopped` with the reason. Errors during the stop are
    printed. Repeating the request before the mesh has ended has no effect.

    Args:
        mesh_id: The number of the mesh in its job, as in `spawned` events.
        reason: The requester and the reason, shown in the errors that callers get.

    Returns:
        The name of the mesh.

    Raises:
        LookupError: This process owns no mesh with this number.

    Example:
        >>> stop_owned(event.actor, "the night shift is over")  # doctest: +SKIP
        'trainers'
    """
    owned = runtime().ownership.owned() if is_running() else []
    for mesh in owned:
        if mesh._uid == mesh_id:
            _stop(mesh, reason)
            return mesh._name
    raise LookupError(f"this process owns no mesh {mesh_id}: it ended, or another process owns it")


def _stop(mesh: Any, reason: str) -> None:
    end = mesh._begin_stop(reason)
    # A thread must complete the stop, because the owner may never wait for it.
    threading.Thread(target=_wait, args=(end,), name="mesh-stop-request", daemon=True).start()


def _wait(end: Future[None]) -> None:
    error = end.exception()
    if error is not None:
        traceback.print_exception(error)
