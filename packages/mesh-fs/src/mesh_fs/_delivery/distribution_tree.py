"""The tree along which hosts fetch chunks, so that the client sends each byte once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from mesh_fs._delivery.relay import Relay

__all__ = ["DistributionTree", "ancestor_ranks"]

R_co = TypeVar("R_co", bound="Relay", covariant=True)

#: The maximum number of hosts that fetch from one host.
_WIDTH = 2


@dataclass(frozen=True)
class DistributionTree(Generic[R_co]):
    """The hosts of one mesh in the distribution tree of a client.

    Attributes:
        hosts: The relays of these hosts, in one dimension.
        before: The relays of the meshes that were added earlier.
    """

    hosts: R_co
    before: tuple[R_co, ...] = ()

    def ancestors(self, rank: int) -> list[R_co]:
        """Return the relays from which one of `hosts` can fetch, nearest first."""
        return [self._at(place) for place in ancestor_ranks(self.place_of(rank))]

    def place_of(self, rank: int) -> int:
        """Return the position of one of `hosts` in the whole tree."""
        return sum(len(mesh) for mesh in self.before) + rank

    def _at(self, place: int) -> R_co:
        for mesh in (*self.before, self.hosts):
            if place < len(mesh):
                return mesh.slice(host=place)
            place -= len(mesh)
        raise IndexError(f"there is no further host {place}")


def ancestor_ranks(rank: int, width: int = _WIDTH) -> list[int]:
    """Return the ancestors of a host, nearest first; the parent of the root is the client.

    A host that loses its parent continues with the next ancestor. It therefore fetches from the
    client only after all of its ancestors are lost.
    """
    ancestors = []
    while rank > 0:
        rank = (rank - 1) // width
        ancestors.append(rank)
    return ancestors
