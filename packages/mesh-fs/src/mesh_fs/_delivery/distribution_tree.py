"""Which host fetches from which: a tree, so that each byte leaves the client once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from mesh_fs._delivery.relay import Relay

__all__ = ["Followers", "nearest_first"]

R_co = TypeVar("R_co", bound="Relay", covariant=True)

#: How many hosts fetch from one.
_WIDTH = 2


@dataclass(frozen=True)
class Followers(Generic[R_co]):
    """The hosts of one mesh, and those that were there before them.

    Attributes:
        hosts: Their relays, in one dimension.
        before: Those of other meshes, which came first.
    """

    hosts: R_co
    before: tuple[R_co, ...] = ()

    def above(self, rank: int) -> list[R_co]:
        """Gives the hosts from which one of `hosts` fetches, the nearest first."""
        return [self._at(place) for place in nearest_first(self.place_of(rank))]

    def place_of(self, rank: int) -> int:
        """Gives the number of one of `hosts` among all."""
        return sum(len(mesh) for mesh in self.before) + rank

    def _at(self, place: int) -> R_co:
        for mesh in (*self.before, self.hosts):
            if place < len(mesh):
                return mesh.slice(host=place)
            place -= len(mesh)
        raise IndexError(f"there is no host {place} more")


def nearest_first(rank: int, width: int = _WIDTH) -> list[int]:
    """Gives the hosts above a host; behind the last of them there is the client alone.

    A host that loses the one above goes on with the next: so it fetches from the client only when
    all above it are gone.
    """
    above = []
    while rank > 0:
        rank = (rank - 1) // width
        above.append(rank)
    return above
