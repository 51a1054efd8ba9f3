"""Allocations of another process that are mapped here, each once per device while it is used."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mesh_rdma._cuda.driver import CudaError
from mesh_rdma._cuda.exports import LEASE_S
from mesh_rdma._cuda.messages import MappingEvent, MappingNotice
from mesh_rdma._errors import RDMAError, RDMAReleased, RDMATransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_rdma._cuda.driver import CudaDriver
    from mesh_rdma._cuda.messages import Descriptor

__all__ = ["IDLE_S", "Import", "Imports"]

#: How long an unused allocation stays mapped. Mapping it again takes about a millisecond; the owner
#: cannot free it while it is mapped.
IDLE_S = 1.0


@dataclass(eq=False)
class Import:
    """An allocation that is mapped for one device.

    Attributes:
        number: The id of the export at its owner.
        device: The device whose copies can access it.
        base: The address in this process.
    """

    number: int
    device: int
    base: int
    users: int = 0
    used: float = 0.0


class Imports:
    """The mapped allocations of one owner.

    Args:
        driver: The driver that maps them.
        process: The id of this process.
        exchange: Sends a request to the owner and returns the response.
    """

    def __init__(
        self, driver: CudaDriver, process: bytes, exchange: Callable[[bytes], bytes]
    ) -> None:
        self._driver = driver
        self._process = process
        self._exchange = exchange
        self._lock = threading.Lock()
        self._open: dict[tuple[int, int], Import] = {}
        self._reported_at: dict[int, float] = {}

    def acquire(self, device: int, descriptor: Descriptor) -> Import:
        """Map an allocation unless it is mapped; it stays mapped until `release`.

        Raises:
            RDMAReleased: The owner has released the buffer.
            RDMATransportError: The driver cannot map the allocation.
        """
        number = descriptor.number
        with self._lock:
            found = self._open.get((number, device))
            if found is None:
                # Register with the owner first, which then keeps the allocation while it is mapped.
                self._report_opened(number)
                base = self._map(device, descriptor)
                found = self._open[number, device] = Import(number, device, base)
            elif time.monotonic() - self._reported_at.get(number, 0.0) > LEASE_S / 2:
                self._report_opened(number)
            found.users += 1
            return found

    def release(self, import_: Import) -> None:
        """End one use of a mapping."""
        with self._lock:
            import_.users -= 1
            import_.used = time.monotonic()

    def close_idle(self, idle: float) -> float | None:
        """Unmap allocations unused for `idle` seconds; return the seconds until the next call."""
        now = time.monotonic()
        with self._lock:
            unused = [one for one in self._open.values() if not one.users]
            over = [one for one in unused if one.used + idle <= now]
            for one in over:
                del self._open[one.number, one.device]
                self._unmap(one)
            left = [one.used + idle - now for one in unused if one not in over]
        return max(min(left), 0.0) if left else None

    def _map(self, device: int, descriptor: Descriptor) -> int:
        try:
            return self._driver.open(device, descriptor.exported)
        except CudaError as error:
            if not any(one.number == descriptor.number for one in self._open.values()):
                self._notify(MappingEvent.CLOSED, descriptor.number)
            raise RDMATransportError(
                f"this process cannot map the allocation for cuda:{device} ({error})"
            ) from error

    def _unmap(self, one: Import) -> None:
        try:
            self._driver.close(one.device, one.base)
        except CudaError:
            # The device is lost with all of its mappings, so no mapping has to be unmapped.
            return
        if not any(other.number == one.number for other in self._open.values()):
            self._reported_at.pop(one.number, None)
            self._notify(MappingEvent.CLOSED, one.number)

    def _report_opened(self, number: int) -> None:
        if self._exchange(MappingNotice(MappingEvent.OPENED, self._process, number).pack()) != b"y":
            raise RDMAReleased("the buffer was released: request another one from the owner")
        self._reported_at[number] = time.monotonic()

    def _notify(self, event: MappingEvent, number: int) -> None:
        try:
            self._exchange(MappingNotice(event, self._process, number).pack())
        except RDMAError:
            # The owner has died or does not respond; if it is alive, the lease expires there.
            return
