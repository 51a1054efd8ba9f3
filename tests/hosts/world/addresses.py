"""Which addresses a host has: a plan that follows from its number alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HOSTS_MAX = 250

#: As long as the prefixes of the one network that all hosts are in.
PREFIX = 24
PREFIX6 = 64


@dataclass(frozen=True)
class Place:
    """A host's name, and where it is on the network."""

    name: str
    number: int

    def __post_init__(self) -> None:
        """Refuses what would not fit the plan."""
        assert 0 <= self.number < HOSTS_MAX, f"{HOSTS_MAX} hosts at most"

    @property
    def address(self) -> str:
        """Its IPv4 address."""
        return f"10.77.0.{self.number + 1}"

    @property
    def address6(self) -> str:
        """Its IPv6 address."""
        return f"fd77::{self.number + 1:x}"

    @property
    def ethernet(self) -> str:
        """Its link address; locally administered."""
        return f"02:77:00:00:00:{self.number + 1:02x}"

    @property
    def port(self) -> str:
        """What the switch calls its end of the cable."""
        return f"port{self.number}"


def hosts_file(own: Place, places: Sequence[Place]) -> str:
    """Returns what is in /etc/hosts of a host: the names of all, and of itself."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    for place in (own, *(other for other in places if other != own)):
        lines += [f"{place.address} {place.name}", f"{place.address6} {place.name}"]
    return "\n".join(lines) + "\n"
