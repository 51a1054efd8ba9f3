"""Verbs without adapters, in one process, as specified by `_verbs.binding`, and with faults.

A queue pair executes posted requests in order when it is polled. A work request without a valid key
fails, together with all requests after it; requests of a queue pair without a peer fail, too.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mesh_rdma._verbs.binding import (
    FLUSHED,
    PORT_ACTIVE,
    SUCCESS,
    Access,
    Completion,
    Limits,
    Opcode,
    PortState,
    QueuePair,
    QueuePairEnd,
    WorkRequest,
)
from mesh_rdma._verbs.binding import Region as DeviceRegion

REFUSED, SILENT, UNPROTECTED = 10, 12, 4

NEEDED = {
    Opcode.READ: Access.REMOTE_READ,
    Opcode.WRITE: Access.REMOTE_WRITE,
    Opcode.FETCH_ADD: Access.REMOTE_ATOMIC,
    Opcode.COMPARE_AND_SWAP: Access.REMOTE_ATOMIC,
}


@dataclass
class Fabric:
    """Devices that are connected with each other, by name."""

    names: list[str] = field(default_factory=lambda: ["fake0", "fake1"])
    message_max: int = 1 << 31
    queue_len_max: int = 64
    #: The maximum number of work requests that a poll executes.
    steps_per_poll: int = 1 << 30
    #: The devices whose queue pairs cannot be connected.
    unconnectable: set[str] = field(default_factory=set)
    regions: dict[int, FabricRegion] = field(default_factory=dict)
    pairs: dict[int, FabricPair] = field(default_factory=dict)
    #: The lengths of the executed requests, by device.
    carried: dict[str, list[int]] = field(default_factory=dict)
    #: For each post, whether each work request requested a completion.
    signalled: list[list[bool]] = field(default_factory=list)
    keys: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    name: str = "fabric"

    def devices(self) -> list[str]:
        return self.names

    def open(self, device: str) -> FabricDevice:
        return FabricDevice(self, device)

    def gids(self, folder: Path) -> Path:
        """Write the addresses of the ports to a folder in the format of the kernel."""
        for place, name in enumerate(self.names):
            port = folder / name / "ports" / "1"
            for part in ("gids", "gid_attrs/types"):
                (port / part).mkdir(parents=True)
            (port / "gids" / "0").write_text(f"0000:0000:0000:0000:0000:ffff:0a09:{place:02x}01\n")
            (port / "gid_attrs/types/0").write_text("RoCE v2\n")
            (port / "link_layer").write_text("Ethernet\n")
        return folder


class FabricDevice:
    """A device with one port."""

    def __init__(self, fabric: Fabric, name: str) -> None:
        self.fabric = fabric
        self.name = name
        self.limits = Limits(1, fabric.queue_len_max, 4)

    def port(self, number: int) -> PortState:
        return PortState(PORT_ACTIVE, 0, 5, self.fabric.message_max)

    def register(self, address: int, length: int, access: Access) -> DeviceRegion:
        return FabricRegion(self, address, length, access)

    def register_dmabuf(
        self, descriptor: int, offset: int, address: int, length: int, access: Access
    ) -> DeviceRegion:
        os.fstat(descriptor)
        return FabricRegion(self, address, length, access)

    def queue_pair(self, depth: int) -> QueuePair:
        return FabricPair(self, depth)

    def close(self) -> None:
        pass


class FabricRegion:
    """Registered memory."""

    def __init__(self, device: FabricDevice, address: int, length: int, access: Access) -> None:
        self.device, self.address, self.length, self.access = device, address, length, access
        self.local_key = self.remote_key = next(device.fabric.keys)
        device.fabric.regions[self.local_key] = self

    def close(self) -> None:
        del self.device.fabric.regions[self.local_key]

    def contains(self, device: str, address: int, length: int, access: Access) -> bool:
        """Return whether a device may access a range in this way."""
        is_within = self.address <= address and address + length <= self.address + self.length
        return is_within and access in self.access and device == self.device.name


class FabricPair:
    """A queue pair."""

    def __init__(self, device: FabricDevice, depth: int) -> None:
        self.device, self.depth = device, depth
        self.number = next(device.fabric.keys)
        self.peer = 0
        self.is_failed = False
        self.is_full = False
        self._posted: deque[WorkRequest] = deque()
        self._free_slots = depth
        self._done: deque[tuple[Completion, int]] = deque()
        self._unsignalled = 0
        device.fabric.pairs[self.number] = self

    def connect(self, port: int, gid_index: int, own: QueuePairEnd, peer: QueuePairEnd) -> None:
        if self.device.name in self.device.fabric.unconnectable:
            raise OSError(101, "Network is unreachable")
        self.peer = peer.number

    def post(self, works: Sequence[WorkRequest]) -> None:
        self.device.fabric.signalled.append([work.is_signalled for work in works])
        for work in works:
            if self._free_slots == 0 or self.is_full:
                raise OSError(12, "Cannot allocate memory")
            self._free_slots -= 1
            self._posted.append(work)

    def poll(self, len_max: int) -> list[Completion]:
        for _ in range(min(self.device.fabric.steps_per_poll, len(self._posted))):
            self._carry_out(self._posted.popleft())
        taken = [self._done.popleft() for _ in range(min(len_max, len(self._done)))]
        self._free_slots += sum(freed for _, freed in taken)
        return [completion for completion, _ in taken]

    def arm(self) -> int | None:
        return None

    def fail(self) -> None:
        self.is_failed = True

    def close(self) -> None:
        self.device.fabric.pairs.pop(self.number, None)

    def _carry_out(self, work: WorkRequest) -> None:
        status = FLUSHED if self.is_failed else self._move(work)
        self._unsignalled += 1
        if status != SUCCESS:
            self.is_failed = True
        if status != SUCCESS or work.is_signalled:
            self._done.append((Completion(work.id, status, f"status {status}"), self._unsignalled))
            self._unsignalled = 0

    def _move(self, work: WorkRequest) -> int:
        fabric = self.device.fabric
        peer = fabric.pairs.get(self.peer)
        if peer is None or peer.is_failed:
            return SILENT
        if not work.length:
            return SUCCESS
        here, there = fabric.regions.get(work.local_key), fabric.regions.get(work.remote_key)
        change = Access(0) if work.opcode == Opcode.WRITE else Access.LOCAL_WRITE
        local, remote, length = work.local_address, work.remote_address, work.length
        if not here or not here.contains(self.device.name, local, length, change):
            return UNPROTECTED
        if not there or not there.contains(peer.device.name, remote, length, NEEDED[work.opcode]):
            peer.is_failed = True
            return REFUSED
        fabric.carried.setdefault(self.device.name, []).append(length)
        if work.opcode == Opcode.WRITE:
            ctypes.memmove(remote, local, length)
            return SUCCESS
        found = ctypes.string_at(remote, length)
        if work.opcode != Opcode.READ:
            self._change(work, int.from_bytes(found, "little"))
        ctypes.memmove(local, found, length)
        return SUCCESS

    def _change(self, work: WorkRequest, found: int) -> None:
        if work.opcode == Opcode.FETCH_ADD:
            stored = (found + work.operand) % (1 << 64)
        else:
            stored = work.swap if found == work.operand else found
        ctypes.memmove(work.remote_address, stored.to_bytes(8, "little"), 8)
