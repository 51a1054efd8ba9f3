"""Processes for tests that end together."""

from __future__ import annotations

from mesh_core._meshes.host_mesh import this_host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from mesh_core._meshes.proc_mesh import ProcMesh

__all__ = ["LocalProcs"]


class LocalProcs:
    """Spawns processes on this host; calling it is like `this_host().spawn_procs(...)`."""

    def __init__(self) -> None:
        self._meshes: list[ProcMesh] = []

    def __call__(
        self, per_host: Mapping[str, int] | None = None, *, name: str = "test", **options: Any
    ) -> ProcMesh:
        """Spawn a mesh that lives until the test ends.

        Args:
            per_host: The dimensions of the mesh and their sizes.
            name: The name of the mesh, shown in logs and errors.
            **options: Other arguments of `spawn_procs`.
        """
        mesh = this_host().spawn_procs(per_host, name=name, **options)
        self._meshes.append(mesh)
        return mesh

    def close(self) -> None:
        """Stop the spawned meshes, youngest first; a test may already have stopped them."""
        while self._meshes:
            # Ignore how it ends; tests that care about it stop the mesh themselves.
            self._meshes.pop().stop().exception()
