"""Callbacks for the process meshes that this process spawns."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core._meshes.proc_mesh import ProcMesh

__all__ = ["register_proc_mesh_spawn_callback", "tell_of_spawn"]

_callbacks: list[Callable[[ProcMesh], object]] = []


def register_proc_mesh_spawn_callback(
    callback: Callable[[ProcMesh], object],
) -> Callable[[], None]:
    """Call a function with each process mesh of this process, before `spawn_procs` returns it.

    The processes may not run yet. An exception of the callback propagates to the caller of
    `spawn_procs`.

    Args:
        callback: May spawn its own actors on the mesh.

    Returns:
        A function that unregisters the callback; calling it more than once has no further effect.
    """
    _callbacks.append(callback)

    def unregister() -> None:
        if callback in _callbacks:
            _callbacks.remove(callback)

    return unregister


def tell_of_spawn(mesh: ProcMesh) -> None:
    """Call all registered callbacks."""
    for callback in tuple(_callbacks):
        callback(mesh)
