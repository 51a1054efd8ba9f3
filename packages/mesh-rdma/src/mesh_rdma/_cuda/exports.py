"""Allocations of this process that other processes map.

The memory of a program is often a small part of an allocation of the driver, and other processes
can map only the whole allocation. An allocation must not be freed while it is mapped. The object
that owns the memory therefore outlives the registration, until all processes that have mapped the
allocation have reported that they unmapped it, or until their lease has expired.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mesh_rdma._cuda.driver import CudaError
from mesh_rdma._errors import RDMATransportError

if TYPE_CHECKING:
    from mesh_rdma._cuda.driver import CudaDriver

__all__ = ["LEASE_S", "Export", "Exports"]

#: A process that uses a mapping renews its lease after half of this time.
LEASE_S = 30.0


@dataclass(eq=False)
class Export:
    """One exported allocation.

    Attributes:
        number: The id of the export.
        device: The device that contains the memory.
        base: The address in this process.
        exported: The handle with which other processes open it.
    """

    number: int
    device: int
    base: int
    exported: bytes
    registrations: int = 0
    users: dict[bytes, float] = field(default_factory=dict)
    kept: list[object] = field(default_factory=list)


class Exports:
    """All exported allocations of this process."""

    def __init__(self) -> None:
        # The lock is reentrant because a finalizer of a buffer may run while it is held.
        self._lock = threading.RLock()
        self._by_number: dict[int, Export] = {}
        self._by_allocation: dict[tuple[int, int], Export] = {}
        self._count = 0
        self._sweeper: threading.Thread | None = None
        self._changed = threading.Condition(self._lock)
        os.register_at_fork(after_in_child=self._reset_after_fork)

    def add(self, driver: CudaDriver, device: int, address: int) -> tuple[Export, int]:
        """Export the allocation that contains an address; return it, and the offset of the address.

        Raises:
            RDMATransportError: The driver cannot share this kind of allocation.
        """
        allocation = driver.allocation_of(device, address)
        key = allocation.base, allocation.number
        with self._lock:
            export = self._by_allocation.get(key)
            if export is None:
                try:
                    exported = driver.export(device, allocation.base)
                except CudaError as error:
                    raise RDMATransportError(
                        f"the driver cannot share this allocation with other processes ({error}):"
                        " allocate it without expandable segments"
                    ) from error
                self._count += 1
                export = Export(self._count, device, allocation.base, exported)
                self._by_allocation[key] = self._by_number[export.number] = export
            export.registrations += 1
            return export, address - allocation.base

    def get(self, number: int) -> Export | None:
        """Return an export if it is still in use."""
        with self._lock:
            return self._by_number.get(number)

    def remove(self, export: Export, memory_owner: object) -> None:
        """Remove one registration; keep its memory alive for processes that still map it."""
        with self._changed:
            export.registrations -= 1
            if export.users:
                export.kept.append(memory_owner)
                if self._sweeper is None:
                    run = threading.Thread(target=self._sweep, name="mesh-rdma-cuda", daemon=True)
                    self._sweeper = run
                    run.start()
            else:
                self._drop_unused(export)

    def opened(self, number: int, process: bytes) -> bool:
        """Record that a process maps an export; return whether the export still exists."""
        with self._lock:
            export = self._by_number.get(number)
            if export is None:
                return False
            export.users[process] = time.monotonic() + LEASE_S
            return True

    def closed(self, number: int, process: bytes) -> None:
        """Record that a process has unmapped an export."""
        freed: list[object] = []
        with self._changed:
            export = self._by_number.get(number)
            if export is not None:
                export.users.pop(process, None)
                freed = self._drop_unused(export)
            self._changed.notify_all()
        freed.clear()

    def _drop_unused(self, export: Export) -> list[object]:
        """Remove objects that are no longer needed; the caller drops them without the lock."""
        if export.users:
            return []
        freed, export.kept = export.kept, []
        if not export.registrations:
            self._by_number.pop(export.number, None)
            for key in [key for key, one in self._by_allocation.items() if one is export]:
                del self._by_allocation[key]
        return freed

    def _sweep(self) -> None:
        """Remove expired leases, as long as memory is kept alive for any process."""
        while True:
            freed: list[object] = []
            with self._changed:
                now = time.monotonic()
                waiting = [one for one in self._by_number.values() if one.kept]
                for export in waiting:
                    for process in [
                        process for process, until in export.users.items() if until <= now
                    ]:
                        del export.users[process]
                    freed += self._drop_unused(export)
                if not any(one.kept for one in self._by_number.values()):
                    self._sweeper = None
                    return
                nearest = min(u for one in waiting for u in (*one.users.values(), now + LEASE_S))
                if not freed:
                    self._changed.wait(max(nearest - now, 0.01))
            freed.clear()

    def _reset_after_fork(self) -> None:
        """Remove all exports in a forked child, which has no access to the device memory."""
        self.__dict__.update(
            _lock=(lock := threading.RLock()),
            _changed=threading.Condition(lock),
            _by_number={},
            _by_allocation={},
            _sweeper=None,
        )
