"""The transport over CUDA IPC: devices copy directly between processes of one machine."""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING

from mesh_rdma._cuda.copier import Copier, Copy, CopyAddresses, StreamEvent, record_stream_event
from mesh_rdma._cuda.driver import NOT_IN_USE, CudaDriver, CudaError, require_driver
from mesh_rdma._cuda.exports import Export, Exports
from mesh_rdma._cuda.imports import IDLE_S, Import, Imports
from mesh_rdma._cuda.messages import Descriptor, MappingEvent, MappingNotice
from mesh_rdma._errors import (
    RDMABoundsError,
    RDMAError,
    RDMAReadOnlyError,
    RDMAReleased,
    RDMATransportError,
)
from mesh_rdma._plugins.transport import (
    Channel,
    Completion,
    Kind,
    Region,
    Registration,
    Request,
    Transport,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mesh_rdma._plugins.transport import CopyLease

__all__ = ["CudaTransport"]


class CudaTransport(Transport):
    """Copies device memory of another process, which is mapped here, or of this process."""

    level = 15
    reaches_host = False
    reaches_devices = True

    def __init__(self) -> None:
        self._exports = Exports()
        self._token = os.urandom(16)
        os.register_at_fork(after_in_child=self._reset_after_fork)

    def _reset_after_fork(self) -> None:
        self._token = os.urandom(16)

    def probe(self) -> str | None:
        """Return None: the driver may come into use later, so it is checked for each buffer."""
        return None

    def register(self, region: Region) -> Registration:
        """Export the allocation that contains the memory.

        Raises:
            RDMATransportError: It is not device memory, or a kind of allocation that cannot be
                shared.
        """
        if region.device is None:
            raise RDMATransportError("the buffer is not in device memory")
        return _Registration(self._exports, self._token, require_driver(), region)

    def connect(self, exchange: Callable[[bytes], bytes]) -> Channel:
        """Create a channel, without mapping any memory.

        Raises:
            RDMATransportError: This process does not use a CUDA device.
        """
        driver = require_driver()
        if not driver.active_devices():
            raise RDMATransportError(NOT_IN_USE)
        return CudaChannel(driver, self._token, self._exports, exchange)

    def accept(self, request: bytes) -> bytes:
        """Record which process maps which allocation of this process."""
        notice = MappingNotice.unpack(request)
        if notice.event is MappingEvent.OPENED:
            return b"y" if self._exports.opened(notice.number, notice.process) else b"n"
        self._exports.closed(notice.number, notice.process)
        return b"y"


class _Registration(Registration):
    def __init__(self, exports: Exports, token: bytes, driver: CudaDriver, region: Region) -> None:
        assert region.device is not None
        self._exports = exports
        self._memory_owner = region.memory_owner
        self._export, offset = exports.add(driver, region.device, region.address)
        uuid = driver.uuid_of(region.device)
        self._descriptor = Descriptor(
            token, self._export.number, offset, region.nbytes, region.is_writable, uuid,
            self._export.exported,
        ).pack()  # fmt: skip

    @property
    def descriptor(self) -> bytes:
        return self._descriptor

    def release(self) -> None:
        memory_owner, self._memory_owner = self._memory_owner, None
        self._exports.remove(self._export, memory_owner)


class CudaChannel(Channel):
    """The device memory of another process, or of this one, as devices here can access it."""

    def __init__(
        self,
        driver: CudaDriver,
        token: bytes,
        exports: Exports,
        exchange: Callable[[bytes], bytes],
    ) -> None:
        self.driver = driver
        self.token = token
        self.exports = exports
        self.imports = Imports(driver, token, exchange)
        self._lock = threading.Lock()
        self._copies: dict[Request, _DeviceCopy] = {}
        self._over: queue.SimpleQueue[Completion] = queue.SimpleQueue()
        self._copier = Copier(driver, lambda: self.imports.close_idle(IDLE_S))

    def refusal_of(self, descriptor: bytes) -> str | None:
        """Map the allocation once, because only the driver knows whether that is possible."""
        remote = Descriptor.unpack(descriptor)
        if remote.owner == self.token:
            self.export(remote)
            return None
        try:
            self.imports.release(self.map(None, remote))
        except RDMATransportError as error:
            return str(error)
        # Let the copier unmap the allocation if no copy uses it.
        self._copier.wake_idle()
        return None

    def post(self, request: Request) -> None:
        """Start a copy.

        Raises:
            RDMABoundsError: The range exceeds the remote memory.
            RDMAReadOnlyError: The destination is read-only.
            RDMATransportError: The descriptor is malformed, or the channel was closed.
        """
        remote = check(request)
        after = None
        if request.local.device is not None:
            after = record_stream_event(self.driver, request.local.device)
        copy = _DeviceCopy(self, request, remote, after)
        with self._lock:
            self._copies[request] = copy
        try:
            self._copier.start(copy)
        except BaseException:
            self.remove(copy)
            raise

    def poll(self, timeout: float) -> Sequence[Completion]:
        """Return the copies that have ended."""
        over = []
        try:
            over.append(self._over.get(timeout=timeout))
            while True:
                over.append(self._over.get_nowait())
        except queue.Empty:
            return over

    def abort(self, request: Request) -> None:
        """Abort a copy, and wait for its pieces in flight."""
        with self._lock:
            copy = self._copies.pop(request, None)
        if copy is not None:
            self._copier.abort(copy)

    def close(self) -> None:
        """Abort all copies, and unmap all allocations."""
        self._copier.close()
        self.imports.close_idle(0.0)

    def remove(self, copy: _DeviceCopy) -> bool:
        """Remove a copy from the running copies; return whether it was one of them."""
        with self._lock:
            return self._copies.pop(copy.request, None) is not None

    def report(self, copy: _DeviceCopy, error: Exception | None) -> None:
        """Report the end of a copy to `poll`, unless the copy was aborted."""
        if self.remove(copy):
            self._over.put(Completion(copy.request, error))

    def export(self, remote: Descriptor) -> Export:
        """Return an allocation of this process.

        Raises:
            RDMAReleased: The allocation is no longer exported.
        """
        export = self.exports.get(remote.number)
        if export is None:
            raise RDMAReleased("the buffer was released: request another one from the owner")
        return export

    def map(self, local: int | None, remote: Descriptor) -> Import:
        """Map an allocation of the other process for the device of a copy, or for another one.

        Raises:
            RDMATransportError: No device in use here can access it.
        """
        failed: RDMAError = RDMATransportError(NOT_IN_USE)
        for device in self._devices(local, remote.uuid):
            try:
                return self.imports.acquire(device, remote)
            except RDMAReleased:
                raise
            except RDMATransportError as error:
                failed = error
        raise failed

    def _devices(self, local: int | None, uuid: bytes) -> list[int]:
        """Return the devices that may copy, best first; only devices that are already in use."""
        driver = self.driver
        seen = range(driver.device_count())
        same = next((one for one in seen if driver.uuid_of(one) == uuid), None)
        if same is None:
            raise RDMATransportError(
                "its device is not visible to this process: see CUDA_VISIBLE_DEVICES"
            )
        active = driver.active_devices()
        near = [one for one in (local, same) if one in active]
        return list(dict.fromkeys(near)) or active


class _DeviceCopy(Copy):
    """The copy of one request."""

    def __init__(
        self, channel: CudaChannel, request: Request, remote: Descriptor, after: StreamEvent | None
    ) -> None:
        local = request.local
        super().__init__(local.nbytes, local.device is not None, after)
        self.request = request
        self._channel = channel
        self._remote = remote
        self._copy_lease: CopyLease | None = None
        self._import: Import | None = None

    def prepare(self) -> CopyAddresses:
        request, remote, channel = self.request, self._remote, self._channel
        if request.copy_lease is not None:
            self._copy_lease = request.copy_lease()
        local = request.local
        if remote.owner == channel.token:
            export = channel.export(remote)
            device, base = export.device, export.base
        else:
            self._import = channel.map(local.device, remote)
            device, base = self._import.device, self._import.base
        there = base + remote.offset + request.offset
        if request.kind is Kind.READ:
            return CopyAddresses(device, local.address, there)
        return CopyAddresses(device, there, local.address)

    def check(self) -> None:
        if self._copy_lease is not None:
            self._copy_lease.check()

    def finish(self, error: Exception | None) -> None:
        if self._import is not None:
            self._channel.imports.release(self._import)
        if self._copy_lease is not None:
            self._copy_lease.end()
        if isinstance(error, CudaError):
            error = RDMATransportError(f"cuda: {error}")
        self._channel.report(self, error)


def check(request: Request) -> Descriptor:
    """Return the remote memory of a request, after checking that the request is valid.

    Raises:
        RDMABoundsError: The range exceeds the remote memory.
        RDMAReadOnlyError: The destination is read-only.
        RDMATransportError: The descriptor is malformed, or the request is atomic.
    """
    remote = Descriptor.unpack(request.descriptor)
    begin, end = request.offset, request.offset + request.local.nbytes
    if not 0 <= begin <= end <= remote.nbytes:
        raise RDMABoundsError(
            f"bytes {begin} to {end} are outside of a buffer of {remote.nbytes} bytes"
        )
    if request.kind is Kind.READ and not request.local.is_writable:
        raise RDMAReadOnlyError("the local memory is read-only: pass writable memory")
    if request.kind is Kind.WRITE and not remote.is_writable:
        raise RDMAReadOnlyError("the memory of the peer is read-only")
    if request.kind not in (Kind.READ, Kind.WRITE):
        raise RDMATransportError("cuda: words are changed by the owner")
    return remote
