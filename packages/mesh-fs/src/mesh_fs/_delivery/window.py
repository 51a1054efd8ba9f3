"""Memory in which a process provides chunks to another one: a few slots, used in turn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from mesh_rdma import RDMABuffer, allocate

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SLOT_BYTES", "SLOT_COUNT", "Slots", "Windows"]

T = TypeVar("T")

#: The maximum size of one transfer.
SLOT_BYTES = 4 << 20
#: The number of slots, and thus of concurrent transfers to one reader.
SLOT_COUNT = 6


class Windows:
    """The windows that a process provides, one for each reader."""

    def __init__(self) -> None:
        self._windows: dict[str, tuple[memoryview, RDMABuffer]] = {}

    def open(self, reader: str) -> RDMABuffer:
        """Return the window of a reader, from which it reads the data that `fill` writes."""
        if reader not in self._windows:
            memory = allocate(SLOT_BYTES * SLOT_COUNT)
            self._windows[reader] = memory, RDMABuffer(memory)
        return self._windows[reader][1]

    async def fill(self, reader: str, slot: int, put: Callable[[memoryview], T]) -> T:
        """Fill a slot in another thread; return the result of `put`."""
        memory, _ = self._windows[reader]
        return await asyncio.to_thread(put, memory[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES])


class Slots:
    """The free slots of a window. Some slots are reserved for urgent transfers."""

    _FOR_URGENT = 2

    def __init__(self) -> None:
        self._free = list(range(SLOT_COUNT))
        self._changed = asyncio.Condition()
        self._urgent_waiting = 0

    async def acquire(self, *, is_urgent: bool) -> int:
        """Wait for a free slot."""
        async with self._changed:
            self._urgent_waiting += is_urgent
            try:
                await self._changed.wait_for(lambda: self._is_free(is_urgent=is_urgent))
            finally:
                self._urgent_waiting -= is_urgent
            return self._free.pop()

    async def release(self, slot: int) -> None:
        """Release a slot."""
        async with self._changed:
            self._free.append(slot)
            self._changed.notify_all()

    def _is_free(self, *, is_urgent: bool) -> bool:
        if is_urgent:
            return bool(self._free)
        return len(self._free) > self._FOR_URGENT and not self._urgent_waiting
