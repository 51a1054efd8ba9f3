"""Routes between the hosts of a job."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mesh_core._hosts.address import Address

__all__ = ["Route", "ways"]


class Route:
    """The route from the program to a host; the routes between hosts are derived from it.

    Attributes:
        addresses: The addresses on which the host listens, each as `name:port`.
        gateway: The addresses of the worker that forwards connections to it; empty for none.
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
        """Return the route to a worker.

        Raises:
            OSError: Its name cannot be resolved.
        """
        if gateway is not None:
            return Route([address.name], [gateway.name])
        found = address.resolve()
        # Other hosts may not reach it at the address that this process uses, and its name may
        # resolve differently there.
        names = found if address.name in found else [*found, address.name]
        return Route(names, is_here=address.is_loopback)

    def towards(self, other: Route) -> tuple[list[str], list[str]] | None:
        """Return the addresses and the gateway with which this route's host reaches another one.

        None if it cannot reach it; the other host then has to open the connection.
        """
        if other.is_here and not self.is_here:
            return None
        # Hosts behind one gateway can reach each other and the gateway directly.
        is_near = other.gateway == self.gateway or not set(other.gateway).isdisjoint(self.addresses)
        gateway = [] if is_near else other.gateway
        return other.addresses, gateway


def ways(route: Route, others: Mapping[int, Route]) -> dict[int, tuple[list[str], list[str], bool]]:
    """Return the routes from a host to others, and whether it must connect to them.

    It must connect to a host that cannot reach it.
    """
    found = {}
    for other, there in others.items():
        way = route.towards(there)
        if way is not None:
            found[other] = (*way, there.towards(route) is None)
    return found
