"""Who wants to know of every process mesh that this process spawns."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core._meshes.mesh import ProcMesh

__all__ = ["register_proc_mesh_spawn_callback", "tell_of_spawn"]

_callbacks: list[Callable[[ProcMesh], object]] = []


def register_proc_mesh_spawn_callback(
    callback: Callable[[ProcMesh], object],
) -> Callable[[], None]:
    """Calls back with each process mesh that this process spawns, before the spawner has it.

    The processes may not run yet. What the callback raises, the spawner gets.

    Args:
        callback: May spawn actors of its own on the mesh.

    Returns:
        A function that ends this; calling it twice is the same as once.
    """
    _callbacks.append(callback)

    def unregister() -> None:
        if callback in _callbacks:
            _callbacks.remove(callback)

    return unregister


def tell_of_spawn(mesh: ProcMesh) -> None:
    """Calls everybody back who wants to know."""
    for callback in tuple(_callbacks):
        callback(mesh)
