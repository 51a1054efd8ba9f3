"""The addresses of a host, derived from its number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HOSTS_MAX = 250

#: Prefix lengths of the network that all hosts share.
PREFIX = 24
PREFIX6 = 64


@dataclass(frozen=True)
class Place:
    """The name of a host and its position in the network."""

    name: str
    number: int
    is_behind_nat: bool = False
    """Whether its address is unknown to other hosts, which cannot connect to this host."""

    def __post_init__(self) -> None:
        """Reject numbers that do not fit into the address plan."""
        assert 0 <= self.number < HOSTS_MAX, f"{HOSTS_MAX} hosts at most"

    @property
    def address(self) -> str:
        """The IPv4 address that other hosts see."""
        return f"10.77.0.{self.number + 1}"

    @property
    def address6(self) -> str:
        """The IPv6 address that other hosts see."""
        return f"fd77::{self.number + 1:x}"

    @property
    def own_address(self) -> str:
        """The IPv4 address of the network interface of the host itself."""
        return f"192.168.77.{self.number + 1}" if self.is_behind_nat else self.address

    @property
    def own_address6(self) -> str:
        """The IPv6 address of the network interface of the host itself."""
        return f"fd78::{self.number + 1:x}" if self.is_behind_nat else self.address6

    @property
    def ethernet(self) -> str:
        """The MAC address; locally administered."""
        return f"02:77:00:00:00:{self.number + 1:02x}"

    @property
    def port(self) -> str:
        """The name of its port on the switch."""
        return f"port{self.number}"


def hosts_file(own: Place, places: Sequence[Place]) -> str:
    """Return the content of /etc/hosts of a host: the names of all hosts."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    lines += [f"{own.own_address} {own.name}", f"{own.own_address6} {own.name}"]
    for place in places:
        if place != own:
            lines += [f"{place.address} {place.name}", f"{place.address6} {place.name}"]
    return "\n".join(lines) + "\n"
