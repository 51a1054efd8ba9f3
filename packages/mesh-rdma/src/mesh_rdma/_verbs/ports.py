"""Selection of the network adapter ports for the verbs transport, and of their addresses."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mesh_core import ConfigError
from mesh_rdma._errors import RDMATransportError
from mesh_rdma._verbs.binding import PORT_ACTIVE, Binding, Device, PortState

#: The folder in which the kernel lists the addresses of ports.
FOLDER = Path("/sys/class/infiniband")

#: The maximum number of ports in use.
PORTS_MAX = 16

#: The value of an unused entry in the address table.
NO_GID = bytes(16)


@dataclass(frozen=True)
class Gid:
    """An address of a port: its index in the table, and the type of its packets."""

    index: int
    address: bytes
    kind: str

    @property
    def preference(self) -> tuple[int, int]:
        """The sort key; the address most likely to be reachable from other hosts comes first."""
        address = ipaddress.IPv6Address(self.address)
        if not self.is_routable:
            return 3, self.index
        if address.ipv4_mapped:
            return (2 if address.ipv4_mapped.is_link_local else 0), self.index
        return (2 if address.is_link_local else 1), self.index

    @property
    def is_routable(self) -> bool:
        """Whether packets to it are IP packets."""
        return self.kind == "RoCE v2"


@dataclass(frozen=True)
class Choice:
    """A choice of the user: a device, one of its ports, or one address of a port."""

    device: str
    port: int | None = None
    gid_index: int | None = None

    @classmethod
    def parse(cls, text: str) -> Choice:
        """Parse `device`, `device:port` or `device:port:gid_index`.

        Raises:
            ConfigError: The text has another form.
        """
        device, *numbers = text.strip().split(":")
        if not device or len(numbers) > 2 or not all(one.isdecimal() for one in numbers):
            raise ConfigError(
                f"{text!r} is not a port: use device, device:port or device:port:gid_index"
            )
        return cls(device, *map(int, numbers))


@dataclass(frozen=True)
class Port:
    """A usable port."""

    device: Device
    number: int
    gid: Gid
    state: PortState
    is_ethernet: bool

    @property
    def name(self) -> str:
        """The name with which a user selects it."""
        return f"{self.device.name}:{self.number}"

    def may_reach(self, is_ethernet: bool, gid: bytes) -> bool:
        """Return whether a port with that address can be on the same network."""
        if self.is_ethernet or is_ethernet:
            return self.is_ethernet and is_ethernet
        # The first half of an InfiniBand address identifies the subnet.
        return self.gid.address[:8] == gid[:8]


class NoUsablePortError(RDMATransportError):
    """No port is usable; the message gives the reason and how to fix it."""


def find(binding: Binding, chosen: Sequence[Choice] = (), folder: Path = FOLDER) -> list[Port]:
    """Open devices and return their usable ports.

    Raises:
        NoUsablePortError: No port is usable.
    """
    names = _names(binding)
    for choice in chosen:
        if choice.device not in names:
            raise NoUsablePortError(
                f"no device {choice.device}: the devices are {', '.join(names)}"
            )
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
            reasons.append(
                f"cannot open {name} ({error}): check the permissions of /dev/infiniband"
            )
        if device and not found:
            device.close()
        ports += found
    if not ports:
        raise NoUsablePortError("; ".join(reasons))
    return ports[:PORTS_MAX]


def _names(binding: Binding) -> list[str]:
    try:
        names = binding.devices()
    except OSError as error:
        raise NoUsablePortError(
            f"the kernel shows no verbs devices ({error}): load ib_uverbs and a driver"
        ) from error
    if not names:
        raise NoUsablePortError("no verbs device: use a network adapter that supports RDMA")
    return sorted(names)


def _of_device(
    device: Device, choices: Sequence[Choice], folder: Path, reasons: list[str]
) -> list[Port]:
    """Return the usable ports of a device; append to `reasons` why others are not usable."""
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
    """Return the addresses of a port, as listed by the kernel in a folder."""
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
    """Return the content of a file; reading the type of an unused address fails."""
    with suppress(OSError):
        return path.read_text().strip()
    return ""
