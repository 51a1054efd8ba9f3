"""Processes with device memory, on the fake driver of the tests."""

from __future__ import annotations

from typing import Any

import fake_gpu

from mesh_core import Actor, endpoint
from mesh_rdma import RDMABuffer, _core, allocate
from mesh_rdma._kit.harness import bytes_of, pattern, put_bytes

__all__ = ["DeviceOwner", "unmapped"]


class DeviceOwner(Actor):
    """Registers memory of a given kind, and returns its content."""

    def __init__(self) -> None:
        self._memory: list[Any] = []
        self._buffers: list[RDMABuffer] = []

    @endpoint
    def register(self, content: bytes, kind: str, count: int = 1) -> list[RDMABuffer]:
        """Register `count` new ranges with this content; on a device, they share an allocation."""
        self._memory = made = _make(len(content), kind, count)
        for memory in made:
            if kind != "unmapped":
                put_bytes(memory, content)
        self._buffers = [RDMABuffer(memory) for memory in made]
        return self._buffers

    @endpoint
    def seen(self, place: int = 0) -> bytes:
        """Return the content of the registered memory."""
        memory = self._memory[place]
        return bytes_of(memory, 0, self._buffers[place].size())

    @endpoint
    def fill(self, seed: int) -> None:
        """Write a pattern to the registered memory."""
        put_bytes(self._memory[0], pattern(seed, self._buffers[0].size()))

    @endpoint
    def read(self, buffer: RDMABuffer, kind: str) -> tuple[bytes, str]:
        """Read all of a buffer into new memory; return the memory's content and the transport."""
        (memory,) = _make(buffer.size(), kind, 1)
        buffer.read_into(memory).get()
        return bytes_of(memory, 0, buffer.size()), buffer.backend

    @endpoint
    def write(self, buffer: RDMABuffer, content: bytes, kind: str) -> None:
        """Write to a buffer from new memory."""
        (memory,) = _make(len(content), kind, 1)
        put_bytes(memory, content)
        buffer.write_from(memory).get()

    @endpoint
    def explain(self, buffer: RDMABuffer) -> str:
        """Describe the transport that this process uses."""
        return buffer.explain()

    @endpoint
    def free(self) -> None:
        """Release the registrations and free their memory."""
        for buffer in self._buffers:
            buffer.drop().get()
        self._buffers.clear()
        self._memory = []


def unmapped(nbytes: int) -> Any:
    """Return an unmapped address, as device memory that no driver knows."""
    return _core.Local.at(0x7000_0000_0000, nbytes, True, None, 0)


def _make(nbytes: int, kind: str, count: int) -> list[Any]:
    if kind == "plain":
        return [bytearray(nbytes) for _ in range(count)]
    if kind == "arena":
        return [allocate(nbytes) for _ in range(count)]
    if kind == "unmapped":
        return [unmapped(nbytes)]
    device = 1 if kind == "second device" else 0
    is_expandable = kind == "expandable"
    whole = fake_gpu.Allocation(nbytes * count + 512, device, is_expandable=is_expandable)
    parts = range(256, 256 + nbytes * count, nbytes)
    return [fake_gpu.DeviceMemory(whole, offset, nbytes) for offset in parts]
