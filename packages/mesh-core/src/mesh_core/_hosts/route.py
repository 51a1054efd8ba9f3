"""How hosts of a job reach each other."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mesh_core._hosts.address import Address

__all__ = ["Route", "ways"]


class Route:
    """How the program reaches a host, and with that how others do.

    Attributes:
        addresses: Where the host listens, each as `name:port`.
        gateway: Where the worker listens that passes on what is sent there; empty for none.
        is_here: Whether it listens for this machine only.
    """

    __slots__ = ("addresses", "gateway", "is_here")

    def __init__(
        self, addresses: Sequence[str], gateway: Sequence[str] = (), is_here: bool = False
    ) -> None:
        self.addresses: list[str] = list(addresses)
        self.gateway: list[str] = list(gateway)
        self.is_here: bool = is_here

    @staticmethod
    def to_worker(address: Address, gateway: Address | None) -> Route:
        """Gives how a worker is reached.

        Raises:
            OSError: Its name is not known.
        """
        if gateway is not None:
            return Route([address.name], [gateway.name])
        found = address.resolve()
        # Where others do not reach it at the address that we do, its name may mean another there.
        names = found if address.name in found else [*found, address.name]
        return Route(names, is_here=address.is_loopback)

    def towards(self, other: Route) -> tuple[list[str], list[str]] | None:
        """Gives where the host of this route finds that of another, with the gateway to it.

        None when it cannot: then the other one has to open the link.
        """
        if other.is_here and not self.is_here:
            return None
        # Those behind one gateway are neighbours, of each other and of the gateway.
        is_near = other.gateway == self.gateway or not set(other.gateway).isdisjoint(self.addresses)
        gateway = [] if is_near else other.gateway
        return other.addresses, gateway


def ways(route: Route, others: Mapping[int, Route]) -> dict[int, tuple[list[str], list[str], bool]]:
    """Gives how a host reaches others, and whether they cannot reach it, so that it must call."""
    found = {}
    for other, there in others.items():
        way = route.towards(there)
        if way is not None:
            found[other] = (*way, there.towards(route) is None)
    return found
