"""Processes that end together, for tests."""

from __future__ import annotations

from mesh_core._meshes.mesh import this_host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from mesh_core._meshes.mesh import ProcMesh

__all__ = ["LocalProcs"]


class LocalProcs:
    """Spawns processes on this host; calling it is `this_host().spawn_procs(...)`."""

    def __init__(self) -> None:
        self._meshes: list[ProcMesh] = []

    def __call__(
        self, per_host: Mapping[str, int] | None = None, *, name: str = "test", **options: Any
    ) -> ProcMesh:
        """Spawns a mesh that lives until the test ends.

        Args:
            per_host: Its dimensions and their sizes.
            name: Shown in logs and errors.
            **options: What else `spawn_procs` takes.
        """
        mesh = this_host().spawn_procs(per_host, name=name, **options)
        self._meshes.append(mesh)
        return mesh

    def close(self) -> None:
        """Stops what was spawned, last first; a test may have done so itself."""
        while self._meshes:
            # How it ends is the business of tests that look at it.
            self._meshes.pop().stop().exception()
