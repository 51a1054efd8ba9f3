"""What other packages give to the hosts of a job, such as files: opened and closed with the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol

from mesh_core import HostMesh
from mesh_jobs._errors import JobError

__all__ = ["GROUP", "Equipment", "OpenEquipment", "load_extension"]

GROUP = "mesh_jobs.equipment"
"""The entry points of other packages: what makes an `Equipment` of plain values, by keyword."""


class OpenEquipment(Protocol):
    """Equipment that hosts have."""

    def refresh(self) -> None:
        """Brings it up to date; is called each time the program asks for the job's state again.

        Raises:
            MeshError: It cannot.
        """

    def used(self, name: str, hosts: HostMesh) -> HostMesh:
        """Gives the hosts of a mesh as the program is to use them; mostly the same.

        Args:
            name: The mesh.
            hosts: Its hosts.
        """

    def status(self) -> Mapping[str, Any]:
        """Says how it is, in values that JSON has."""

    def close(self) -> None:
        """Takes it from the hosts; some of them may be lost."""


class Equipment(Protocol):
    """What hosts are to have; `Job.equip` takes it."""

    def open(self, meshes: Mapping[str, HostMesh]) -> OpenEquipment:
        """Gives it to hosts of a job; is called when the program has attached to them.

        Args:
            meshes: All meshes of the job, by name.

        Raises:
            MeshError: It cannot be had; nothing of it is left then.
        """


def load_extension(kind: str, fields: Mapping[str, Any]) -> Equipment:
    """Makes equipment of a kind.

    Args:
        kind: The name of its entry point.
        fields: What that is called with.

    Raises:
        JobError: It is not installed, or cannot be loaded.
    """
    found = list(entry_points(group=GROUP, name=kind))
    if not found:
        raise JobError(
            f"nothing here equips hosts with a {kind!r}: install the package that has it in the "
            f"entry-point group {GROUP!r}"
        )
    try:
        make: Callable[..., Equipment] = found[0].load()
    except ImportError as error:
        raise JobError(f"{kind!r} of {found[0].value} cannot be loaded: {error}") from error
    return make(**fields)
