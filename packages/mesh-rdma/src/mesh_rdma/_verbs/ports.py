"""Which ports of which network adapters the verbs transport uses, and by which address of each."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mesh_core import ConfigError
from mesh_rdma._errors import RDMATransportError
from mesh_rdma._verbs.binding import PORT_ACTIVE, Binding, Device, PortState

#: Where the kernel tells which addresses a port has.
FOLDER = Path("/sys/class/infiniband")

#: No more ports than this are used at a time.
PORTS_MAX = 16

#: What a field says that nothing was filled in for.
NO_GID = bytes(16)


@dataclass(frozen=True)
class Gid:
    """An address of a port: its place in the table, and how packets to it look."""

    index: int
    address: bytes
    kind: str

    @property
    def preference(self) -> tuple[int, int]:
        """Sorts the address first that is most likely to be reached from other hosts."""
        address = ipaddress.IPv6Address(self.address)
        if not self.is_routable:
            return 3, self.index
        if address.ipv4_mapped:
            return (2 if address.ipv4_mapped.is_link_local else 0), self.index
        return (2 if address.is_link_local else 1), self.index

    @property
    def is_routable(self) -> bool:
        """Whether packets to it go through IP."""
        return self.kind == "RoCE v2"


@dataclass(frozen=True)
class Choice:
    """What a user names: a device, or one of its ports, or one address of that."""

    device: str
    port: int | None = None
    gid_index: int | None = None

    @classmethod
    def parse(cls, text: str) -> Choice:
        """Reads `device`, `device:port` or `device:port:gid index`.

        Raises:
            ConfigError: It is none of these.
        """
        device, *numbers = text.strip().split(":")
        if not device or len(numbers) > 2 or not all(one.isdecimal() for one in numbers):
            raise ConfigError(
                f"{text!r} names no port: write device, device:port or device:port:gid_index"
            )
        return cls(device, *map(int, numbers))


@dataclass(frozen=True)
class Port:
    """A port that can be sent through."""

    device: Device
    number: int
    gid: Gid
    state: PortState
    is_ethernet: bool

    @property
    def name(self) -> str:
        """The name that a user would choose it by."""
        return f"{self.device.name}:{self.number}"

    def may_reach(self, is_ethernet: bool, gid: bytes) -> bool:
        """Whether a port with that address can be on the same network."""
        if self.is_ethernet or is_ethernet:
            return self.is_ethernet and is_ethernet
        # The first half of an address of InfiniBand is that of its subnet.
        return self.gid.address[:8] == gid[:8]


class Unusable(RDMATransportError):
    """There is no port to be used; the text says why, and what to do."""


def find(binding: Binding, chosen: Sequence[Choice] = (), folder: Path = FOLDER) -> list[Port]:
    """Opens devices and returns the ports that can be sent through.

    Raises:
        Unusable: There are none.
    """
    names = _names(binding)
    for choice in chosen:
        if choice.device not in names:
            raise Unusable(f"there is no device {choice.device}: there are {', '.join(names)}")
    wanted = [choice.device for choice in chosen] or names
    ports: list[Port] = []
    reasons: list[str] = []
    for name in dict.fromkeys(wanted):
        choices = [choice for choice in chosen if choice.device == name] or [Choice(name)]
        device, found = None, []
        try:
            device = binding.open(name)
            found = _of_device(device, choices, folder, reasons)
        except OSError as error:
            reasons.append(f"{name} cannot be opened ({error}): see the rights of /dev/infiniband")
        if device and not found:
            device.close()
        ports += found
    if not ports:
        raise Unusable("; ".join(reasons))
    return ports[:PORTS_MAX]


def _names(binding: Binding) -> list[str]:
    try:
        names = binding.devices()
    except OSError as error:
        raise Unusable(
            f"the kernel shows no verbs devices ({error}): load ib_uverbs and a driver"
        ) from error
    if not names:
        raise Unusable("there is no verbs device: a network adapter that knows RDMA has one")
    return sorted(names)


def _of_device(
    device: Device, choices: Sequence[Choice], folder: Path, reasons: list[str]
) -> list[Port]:
    """Returns the usable ports of a device, and notes why others are not."""
    ports = []
    for number in range(1, device.limits.ports + 1):
        named = [choice for choice in choices if choice.port in (None, number)]
        if not named:
            continue
        state = device.port(number)
        if state.state != PORT_ACTIVE:
            reasons.append(f"port {device.name}:{number} is not active: bring its link up")
            continue
        gids = sorted(read_gids(folder / device.name / "ports" / str(number)), key=_preference)
        index = named[0].gid_index
        gid = next((gid for gid in gids if index in (None, gid.index)), None)
        if gid is None:
            which = "no address" if index is None else f"no address {index}"
            reasons.append(f"port {device.name}:{number} has {which}: give its interface one")
            continue
        is_ethernet = _read(folder / device.name / "ports" / str(number) / "link_layer")
        ports.append(Port(device, number, gid, state, is_ethernet != "InfiniBand"))
    return ports


def read_gids(folder: Path) -> list[Gid]:
    """Returns the addresses of a port, by what the kernel shows of it in a folder."""
    gids = []
    for entry in sorted((folder / "gids").glob("*"), key=lambda path: int(path.name)):
        address = ipaddress.IPv6Address(_read(entry) or "::").packed
        kind = _read(folder / "gid_attrs" / "types" / entry.name)
        if address != NO_GID:
            gids.append(Gid(int(entry.name), address, kind))
    return gids


def _preference(gid: Gid) -> tuple[int, int]:
    return gid.preference


def _read(path: Path) -> str:
    """Returns what a file says; reading the kind of an address that is not there is refused."""
    with suppress(OSError):
        return path.read_text().strip()
    return ""
