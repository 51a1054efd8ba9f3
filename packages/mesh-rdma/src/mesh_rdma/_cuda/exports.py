"""Allocations of this process that others map: each is kept for as long as anybody does.

A program's memory is often a small part of what the driver gave at once, and only that as a whole
can be mapped by others. It must not be freed while it is mapped, so what keeps it outlives the
registration, until those who have mapped it say that they do no more, or say nothing any more.
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

#: Who maps an allocation says so again in half of this time while it uses it.
LEASE_S = 30.0


@dataclass(eq=False)
class Export:
    """One allocation.

    Attributes:
        number: What it is called.
        device: The one whose memory it is.
        base: Where it begins here.
        exported: What others open it by.
    """

    number: int
    device: int
    base: int
    exported: bytes
    registrations: int = 0
    users: dict[bytes, float] = field(default_factory=dict)
    kept: list[object] = field(default_factory=list)


class Exports:
    """All of this process."""

    def __init__(self) -> None:
        # The finaliser of a buffer may run inside of it.
        self._lock = threading.RLock()
        self._by_number: dict[int, Export] = {}
        self._by_allocation: dict[tuple[int, int], Export] = {}
        self._count = 0
        self._sweeper: threading.Thread | None = None
        self._changed = threading.Condition(self._lock)
        os.register_at_fork(after_in_child=self._forget)

    def add(self, driver: CudaDriver, device: int, address: int) -> tuple[Export, int]:
        """Exports the allocation of an address; gives it, and where in it the address is.

        Raises:
            RDMATransportError: The driver does not share allocations of that kind.
        """
        allocation = driver.allocation_of(address)
        key = allocation.base, allocation.number
        with self._lock:
            export = self._by_allocation.get(key)
            if export is None:
                try:
                    exported = driver.export(device, allocation.base)
                except CudaError as error:
                    raise RDMATransportError(
                        f"the driver does not share this allocation with other processes ({error}):"
                        f" allocate it without expandable segments"
                    ) from error
                self._count += 1
                export = Export(self._count, device, allocation.base, exported)
                self._by_allocation[key] = self._by_number[export.number] = export
            export.registrations += 1
            return export, address - allocation.base

    def get(self, number: int) -> Export | None:
        """Gives one, if there is still a use of it."""
        with self._lock:
            return self._by_number.get(number)

    def remove(self, export: Export, keeper: object) -> None:
        """Ends one registration; what keeps its memory is kept for those who map it."""
        with self._changed:
            export.registrations -= 1
            if export.users:
                export.kept.append(keeper)
                if self._sweeper is None:
                    run = threading.Thread(target=self._sweep, name="mesh-rdma-cuda", daemon=True)
                    self._sweeper = run
                    run.start()
            else:
                self._drop_unused(export)

    def opened(self, number: int, who: bytes) -> bool:
        """Notes that somebody maps one; says whether it is still there."""
        with self._lock:
            export = self._by_number.get(number)
            if export is None:
                return False
            export.users[who] = time.monotonic() + LEASE_S
            return True

    def closed(self, number: int, who: bytes) -> None:
        """Notes that somebody maps one no more."""
        freed: list[object] = []
        with self._changed:
            export = self._by_number.get(number)
            if export is not None:
                export.users.pop(who, None)
                freed = self._drop_unused(export)
            self._changed.notify_all()
        freed.clear()

    def _drop_unused(self, export: Export) -> list[object]:
        """Gives what need not be kept any more, for whoever has no lock to let it go."""
        if export.users:
            return []
        freed, export.kept = export.kept, []
        if not export.registrations:
            self._by_number.pop(export.number, None)
            for key in [key for key, one in self._by_allocation.items() if one is export]:
                del self._by_allocation[key]
        return freed

    def _sweep(self) -> None:
        """Forgets those who have not said anything for long, while something is kept for them."""
        while True:
            freed: list[object] = []
            with self._changed:
                now = time.monotonic()
                waiting = [one for one in self._by_number.values() if one.kept]
                for export in waiting:
                    for who in [who for who, until in export.users.items() if until <= now]:
                        del export.users[who]
                    freed += self._drop_unused(export)
                if not any(one.kept for one in self._by_number.values()):
                    self._sweeper = None
                    return
                nearest = min(u for one in waiting for u in (*one.users.values(), now + LEASE_S))
                if not freed:
                    self._changed.wait(max(nearest - now, 0.01))
            freed.clear()

    def _forget(self) -> None:
        """A forked child has none of the parent's memory on devices."""
        self.__dict__.update(
            _lock=(lock := threading.RLock()),
            _changed=threading.Condition(lock),
            _by_number={},
            _by_allocation={},
            _sweeper=None,
        )
