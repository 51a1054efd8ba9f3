"""Processes with buffers, for tests that copy data between other processes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from killable_processes import pattern

from mesh_core import Actor, endpoint
from mesh_rdma import RDMABuffer, RDMAReleased, allocate
from mesh_rdma._operations import pull
from mesh_rdma._paths import selection

__all__ = ["BufferActor", "BufferOwner"]


class BufferActor(Actor):
    """Registers memory, and returns its content."""

    def __init__(self) -> None:
        self._memory: dict[int, Any] = {}
        self._buffers: dict[int, RDMABuffer] = {}

    @endpoint
    def register(
        self, content: bytes | int, kind: str = "plain", count: int = 1
    ) -> list[RDMABuffer]:
        """Register `count` new ranges, with this content or with this number of zeros."""
        size = content if isinstance(content, int) else len(content)
        made = []
        for _ in range(count):
            memory = allocate(size) if kind == "arena" else memoryview(bytearray(size))
            if not isinstance(content, int):
                memory[:] = content
            buffer = RDMABuffer(memory)
            self._memory[len(self._memory)] = memory
            self._buffers[len(self._buffers)] = buffer
            made.append(buffer)
        return made

    @endpoint
    def bytes_of(self, number: int) -> bytes:
        """Return the content of the registered memory with this number."""
        return bytes(self._memory[number])

    @endpoint
    def has(self, number: int, seed: int) -> bool:
        """Return whether the memory contains a pattern."""
        memory = self._memory[number]
        return bytes(memory) == pattern(seed, len(memory))

    @endpoint
    def drop_and_mark(self, number: int, seed: int) -> None:
        """Release a registration, and immediately write a pattern to its memory."""
        mark = pattern(seed, len(self._memory[number]))
        self._buffers[number].drop().get()
        self._memory[number][:] = mark

    @endpoint
    def clear(self) -> None:
        """Release all memory."""
        for buffer in self._buffers.values():
            # A test may have dropped the buffer.
            with suppress(RDMAReleased):
                buffer.drop().get()
        self._buffers.clear()
        self._memory.clear()

    @endpoint
    def select_transport(self, transport: str | None) -> None:
        """Select the transport for copies to buffers of this process; None selects the best one."""
        if transport is None:
            pull.path_to = selection.path_to
        else:
            pull.path_to = lambda handle: selection.path_to(handle, transport)


class BufferOwner:
    """One process with a actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def register(self, content: bytes | int, kind: str = "plain") -> RDMABuffer:
        """Make the process register memory."""
        (buffer,) = self._actor.register.call_one(content, kind).get()
        assert isinstance(buffer, RDMABuffer)
        return buffer

    def bytes_of(self, number: int = 0) -> bytes:
        """Return the content of the memory."""
        content: bytes = self._actor.bytes_of.call_one(number).get()
        return content

    def has(self, seed: int, number: int = 0) -> bool:
        """Return whether the memory contains a pattern."""
        return bool(self._actor.has.call_one(number, seed).get())

    def drop_and_mark(self, seed: int, number: int = 0) -> None:
        """Make the process release a registration and immediately write a pattern there."""
        self._actor.drop_and_mark.call_one(number, seed).get()

    def clear(self) -> None:
        """Make the process release all memory."""
        self._actor.clear.call_one().get()

    def select_transport(self, transport: str | None) -> None:
        """Select the transport for copies to the process."""
        self._actor.select_transport.call_one(transport).get()
