"""The interface of job extensions: resources of other packages on the hosts, such as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol

from mesh_core import HostMesh
from mesh_jobs._errors import JobError

__all__ = ["GROUP", "JobExtension", "OpenJobExtension", "load_extension"]

GROUP = "mesh_jobs.extensions"
"""The entry-point group; each entry point creates a `JobExtension` from plain keyword arguments."""


class OpenJobExtension(Protocol):
    """An extension that is open on the hosts of a job."""

    def refresh(self) -> None:
        """Refresh the extension; called each time the program requests the job's state again.

        Raises:
            MeshError: The extension cannot be refreshed.
        """

    def used(self, name: str, hosts: HostMesh) -> HostMesh:
        """Return the hosts of a mesh as the program should use them, usually unchanged.

        Args:
            name: The name of the mesh.
            hosts: The hosts of the mesh.
        """

    def status(self) -> Mapping[str, Any]:
        """Return the status of the extension, as JSON values."""

    def close(self) -> None:
        """Remove the extension from the hosts, some of which may be lost."""


class JobExtension(Protocol):
    """Resources for the hosts of a job, passed to `Job.add_extensions`."""

    def open(self, meshes: Mapping[str, HostMesh]) -> OpenJobExtension:
        """Open the extension on the hosts of a job; called when the program has attached to them.

        Args:
            meshes: All meshes of the job, by name.

        Raises:
            MeshError: The extension cannot be opened; nothing of it remains.
        """


def load_extension(kind: str, fields: Mapping[str, Any]) -> JobExtension:
    """Create an extension of a kind.

    Args:
        kind: The name of the entry point.
        fields: The keyword arguments of the entry point.

    Raises:
        JobError: The entry point is not installed, or cannot be loaded.
    """
    found = list(entry_points(group=GROUP, name=kind))
    if not found:
        raise JobError(
            f"no installed package provides the host extension {kind!r}: install the package that "
            f"defines it in the entry-point group {GROUP!r}"
        )
    try:
        make: Callable[..., JobExtension] = found[0].load()
    except ImportError as error:
        raise JobError(f"{kind!r} of {found[0].value} cannot be loaded: {error}") from error
    return make(**fields)
