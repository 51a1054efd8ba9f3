"""The extensions of one job in one program, both requested and open."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from mesh_core import MeshError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mesh_core import HostMesh
    from mesh_jobs._extensions.extension import JobExtension, OpenJobExtension

__all__ = ["OpenExtensions"]


class OpenExtensions:
    """Opens, refreshes and closes extensions with the job state of a program."""

    def __init__(self) -> None:
        self._wanted: list[JobExtension] = []
        # The order is that of `_wanted`; extensions that were added later are not open yet.
        self._open: list[OpenJobExtension] = []
        self._allocation_id = ""

    def want(self, extension: JobExtension) -> None:
        """Add an extension, which is opened with the next job state."""
        self._wanted.append(extension)

    def used(self, allocation_id: str, meshes: Mapping[str, HostMesh]) -> dict[str, HostMesh]:
        """Open new extensions and refresh open ones; return the meshes for the program.

        Args:
            allocation_id: The allocation of the meshes. Extensions of another one are closed first.
            meshes: All meshes of the job, by name.

        Raises:
            MeshError: An extension cannot be opened or refreshed.
        """
        if self._allocation_id != allocation_id:
            self.close()
            self._allocation_id = allocation_id
        for one in self._open:
            one.refresh()
        for wanted in self._wanted[len(self._open) :]:
            self._open.append(wanted.open(meshes))
        used = dict(meshes)
        for one in self._open:
            used = {name: one.used(name, hosts) for name, hosts in used.items()}
        return used

    def close(self) -> None:
        """Close all extensions in reverse order."""
        while self._open:
            # Extensions hold no resources on lost hosts.
            with suppress(MeshError):
                self._open.pop().close()
