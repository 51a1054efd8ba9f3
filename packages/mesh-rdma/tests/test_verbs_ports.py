"""Ports are found, selected or refused with a reason; data from other processes is validated."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from verbs_fabric import Fabric, FabricDevice

from mesh_core import ConfigError
from mesh_rdma._errors import RDMATransportError
from mesh_rdma._verbs.binding import PortState, QueuePairEnd
from mesh_rdma._verbs.messages import (
    ChannelCommand,
    ChannelReply,
    ChannelRequest,
    Descriptor,
    RailEndpoint,
)
from mesh_rdma._verbs.ports import Choice, find, read_gids
from mesh_rdma._verbs.transport import PORTS_VARIABLE, VerbsTransport

ADDRESSES = [
    ("fe80:0000:0000:0000:9456:efff:fe9f:7efc", "IB/RoCE v1"),
    ("fe80:0000:0000:0000:9456:efff:fe9f:7efc", "RoCE v2"),
    ("0000:0000:0000:0000:0000:ffff:0a09:0001", "IB/RoCE v1"),
    ("2001:0db8:0000:0000:0000:0000:0000:0001", "RoCE v2"),
    ("0000:0000:0000:0000:0000:ffff:0a09:0001", "RoCE v2"),
    ("0000:0000:0000:0000:0000:0000:0000:0000", ""),
]


def port_folder(folder: Path, addresses: list[tuple[str, str]], device: str = "fake0") -> Path:
    """Create the folder in which the kernel lists the addresses of a port."""
    port = folder / device / "ports/1"
    for part in ("gids", "gid_attrs/types"):
        (port / part).mkdir(parents=True)
    for index, (address, kind) in enumerate(addresses):
        (port / "gids" / str(index)).write_text(address + "\n")
        if kind:
            (port / "gid_attrs/types" / str(index)).write_text(kind + "\n")
    return port


def test_addresses_reachable_from_other_hosts_are_preferred(tmp_path: Path) -> None:
    gids = read_gids(port_folder(tmp_path, ADDRESSES))
    assert [gid.index for gid in sorted(gids, key=lambda gid: gid.preference)] == [4, 3, 1, 0, 2]


def test_a_port_and_its_address_can_be_selected(tmp_path: Path) -> None:
    port_folder(tmp_path, ADDRESSES)
    fabric = Fabric(["fake0"])
    assert [port.gid.index for port in find(fabric, folder=tmp_path)] == [4]
    assert [port.gid.index for port in find(fabric, [Choice("fake0", 1, 2)], tmp_path)] == [2]


@pytest.mark.parametrize("text", ["", "mlx5_0:x", "mlx5_0:1:2:3", ":1"])
def test_an_invalid_port_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="use device, device:port or device:port:gid_index"):
        Choice.parse(text)


def probe(fabric: Fabric, folder: Path) -> str | None:
    return VerbsTransport(lambda: fabric, folder).probe()


def test_the_reason_names_a_missing_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PORTS_VARIABLE, "fake1, mlx5_9:1")
    reason = probe(Fabric(), Fabric().gids(tmp_path / "f"))
    assert reason == "no device mlx5_9: the devices are fake0, fake1"


def test_the_reason_names_the_missing_requirement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no verbs device" in str(probe(Fabric([]), tmp_path))
    assert "fake0:1 has no address: give" in str(probe(Fabric(["fake0"]), tmp_path))
    monkeypatch.setattr(FabricDevice, "port", lambda *_: PortState(1, 0, 5, 1 << 30))
    assert "fake0:1 is not active: bring" in str(probe(Fabric(["fake0"]), tmp_path))

    def refuse(*_: object) -> FabricDevice:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Fabric, "open", refuse)
    assert "permissions of /dev/infiniband" in str(probe(Fabric(["fake0"]), tmp_path))

    def no_kernel(*_: object) -> list[str]:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(Fabric, "devices", no_kernel)
    assert "load ib_uverbs and a driver" in str(probe(Fabric(["fake0"]), tmp_path))


def test_without_a_binding_the_reason_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ibverbs", None)
    monkeypatch.setitem(sys.modules, "pyverbs", None)
    for name in ("ibverbs", "pyverbs", "installed"):
        monkeypatch.delitem(sys.modules, f"mesh_rdma._verbs.{name}_binding", raising=False)
    from mesh_rdma._verbs.installed_binding import installed_binding

    reason = VerbsTransport(installed_binding).probe()
    assert "install torchmesh-rdma[verbs] and libibverbs1" in str(reason)


def test_messages_from_the_peer_are_validated() -> None:
    end = QueuePairEnd(bytes(range(16)), 7, 5, 1 << 20, 1 << 23, 16)
    rails = [RailEndpoint(number, 1, True, end) for number in range(3)]
    offer = ChannelRequest(ChannelCommand.CONNECT, bytes(16), rails)
    descriptor = Descriptor(1 << 40, True, ((1 << 60, 1 << 31), (5, 6)))
    for packed, kind, original in (
        (offer.pack(), ChannelRequest, offer),
        (ChannelReply(rails).pack(), ChannelReply, ChannelReply(rails)),
        (descriptor.pack(), Descriptor, descriptor),
    ):
        assert kind.unpack(packed) == original
        for broken in (b"", packed[:-1], packed + b"\0", bytes([9]) + packed[1:]):
            with pytest.raises(RDMATransportError):
                kind.unpack(broken)


def test_a_forked_child_does_not_use_the_devices_of_its_parent(tmp_path: Path) -> None:
    fabric = Fabric()
    transport = VerbsTransport(lambda: fabric, fabric.gids(tmp_path / "f"))
    assert transport.probe() is None
    before = transport._open()
    child = os.fork()
    if child == 0:
        os._exit(7 if transport._open() is not before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert transport._open() is before
