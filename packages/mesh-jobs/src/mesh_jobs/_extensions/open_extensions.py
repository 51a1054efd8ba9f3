"""The equipment of one job in one program: what is wanted, and what of it is open."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from mesh_core import MeshError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mesh_core import HostMesh
    from mesh_jobs._extensions.extension import Equipment, OpenEquipment

__all__ = ["OpenExtensions"]


class OpenExtensions:
    """What a program gives to the hosts of its job; it ends with the program at the latest."""

    def __init__(self) -> None:
        self._wanted: list[Equipment] = []
        # In the order of what is wanted; what has come since then is not open yet.
        self._open: list[OpenEquipment] = []
        self._order_id = ""

    def want(self, equipment: Equipment) -> None:
        """Opens it with the next state."""
        self._wanted.append(equipment)

    def used(self, order_id: str, meshes: Mapping[str, HostMesh]) -> dict[str, HostMesh]:
        """Opens what is not open, refreshes the rest; gives meshes as the program uses them.

        Args:
            order_id: The job that the meshes are of: one that was applied anew is another.
            meshes: All meshes, by name.

        Raises:
            MeshError: Some of it cannot be opened or refreshed.
        """
        if self._order_id != order_id:
            self.close()
            self._order_id = order_id
        for one in self._open:
            one.refresh()
        for wanted in self._wanted[len(self._open) :]:
            self._open.append(wanted.open(meshes))
        used = dict(meshes)
        for one in self._open:
            used = {name: one.used(name, hosts) for name, hosts in used.items()}
        return used

    def close(self) -> None:
        """Takes all from the hosts, the last first."""
        while self._open:
            # Hosts that are lost have nothing any more.
            with suppress(MeshError):
                self._open.pop().close()
