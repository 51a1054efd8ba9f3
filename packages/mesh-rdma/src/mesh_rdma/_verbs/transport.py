"""The transport over verbs: InfiniBand and RoCE adapters copy from memory to memory."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mesh_core import ConfigError
from mesh_rdma._cuda.copier import wait_for_stream_event
from mesh_rdma._errors import (
    RDMAAlignmentError,
    RDMABoundsError,
    RDMAReadOnlyError,
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
from mesh_rdma._verbs.binding import Access, Binding, Opcode
from mesh_rdma._verbs.connection import Adapters, Connector, Responder
from mesh_rdma._verbs.errors import unregistered
from mesh_rdma._verbs.installed_binding import installed_binding
from mesh_rdma._verbs.messages import Descriptor, WireError
from mesh_rdma._verbs.ports import FOLDER, Choice, find
from mesh_rdma._verbs.rail_scheduler import RailScheduler
from mesh_rdma._verbs.registrations import Entry, Registrations
from mesh_rdma._verbs.transfer import WORD_LEN, Transfer

#: The environment variable with the ports to use, in this order: a comma-separated list of
#: `device`, `device:port` or `device:port:gid_index`.
PORTS_VARIABLE = "MESH_RDMA_VERBS_PORTS"


@dataclass(eq=False)
class Opened:
    """The verbs resources of a process that uses verbs."""

    adapters: Adapters
    registrations: Registrations
    responder: Responder
    schedulers: weakref.WeakSet[RailScheduler] = field(default_factory=weakref.WeakSet)


class VerbsTransport(Transport):
    """Copies memory through verbs, one-sided: the other process does not take part."""

    level = 30
    has_atomics = True
    reaches_devices = True

    def __init__(
        self, load: Callable[[], Binding] = installed_binding, folder: Path = FOLDER
    ) -> None:
        self._load = load
        self._folder = folder
        self._lock = threading.Lock()
        self._opened: Opened | None = None
        os.register_at_fork(after_in_child=self._abandon)

    def probe(self) -> str | None:
        """Open the adapters; return None, or the reason why that failed."""
        try:
            self._open()
        except (RDMATransportError, ConfigError) as error:
            return str(error)
        return None

    def register(self, region: Region) -> Registration:
        """Register memory with all adapters.

        Raises:
            RDMATransportError: An adapter cannot register the memory.
        """
        registrations = self._open().registrations
        try:
            entry = registrations.add(region.address, region.nbytes, region.is_writable)
        except OSError as error:
            raise unregistered(region.nbytes, error) from error
        return VerbsRegistration(registrations, entry, region.is_writable)

    def connect(self, exchange: Callable[[bytes], bytes]) -> Channel:
        """Create a channel, and connect one rail for each port.

        Raises:
            RDMATransportError: No port of the other process can be reached.
        """
        opened = self._open()
        connector = Connector(opened.adapters, exchange)
        scheduler = RailScheduler(connector, opened.registrations, len(opened.adapters.ports))
        scheduler.connect()
        opened.schedulers.add(scheduler)
        return VerbsChannel(scheduler, opened.registrations)

    def accept(self, request: bytes) -> bytes:
        """Handle a request of `connect` in another process."""
        return self._open().responder.handle(request)

    def _open(self) -> Opened:
        with self._lock:
            if self._opened is None:
                chosen = [
                    Choice.parse(one)
                    for one in os.environ.get(PORTS_VARIABLE, "").split(",")
                    if one.strip()
                ]
                adapters = Adapters(find(self._load(), chosen, self._folder))
                registrations = Registrations(adapters.devices)
                self._opened = Opened(adapters, registrations, Responder(adapters))
            return self._opened

    def _abandon(self) -> None:
        """Leave the resources of the parent open: closing them here would close them there, too.

        Therefore, their reference counts must never reach zero in this process.
        """
        self._lock = threading.Lock()
        if self._opened is not None:
            for kept in (self._opened, *self._opened.schedulers):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
            self._opened = None


class VerbsRegistration(Registration):
    """Memory that is registered with all adapters."""

    def __init__(self, registrations: Registrations, entry: Entry, is_writable: bool) -> None:
        self._registrations = registrations
        self._entry = entry
        keys = [
            (entry.regions[place].address, entry.regions[place].remote_key)
            for place in sorted(entry.regions)
        ]
        self._descriptor = Descriptor(entry.length, is_writable, tuple(keys)).pack()

    @property
    def descriptor(self) -> bytes:
        """The keys of the memory."""
        return self._descriptor

    def release(self) -> None:
        """Deregister the memory from the adapters."""
        self._registrations.remove(self._entry)


#: The bits of a word.
WORD_MASK = (1 << 64) - 1

OPCODES = {
    Kind.READ: Opcode.READ,
    Kind.WRITE: Opcode.WRITE,
    Kind.FETCH_ADD: Opcode.FETCH_ADD,
    Kind.COMPARE_AND_SWAP: Opcode.COMPARE_AND_SWAP,
}


class VerbsChannel(Channel):
    """The rails to one other process, as a `Channel`."""

    def __init__(self, scheduler: RailScheduler, registrations: Registrations) -> None:
        self._scheduler = scheduler
        self._registrations = registrations
        self._lock = threading.Lock()
        self._transfers: dict[Request, Transfer] = {}

    def post(self, request: Request) -> None:
        """Start a transfer.

        Raises:
            RDMABoundsError: The range exceeds the remote memory.
            RDMAReadOnlyError: The destination is read-only.
            RDMAAlignmentError: The request is atomic, and its memory is not an aligned word.
            RDMATransportError: The descriptor is malformed, or the channel was closed.
        """
        if request.local.device is not None:
            # Adapters do not synchronize with streams.
            wait_for_stream_event(request.local.device)
        transfer = self._transfer(request)
        with self._lock:
            self._transfers[request] = transfer
        try:
            self._scheduler.start(transfer)
        except BaseException:
            with self._lock:
                del self._transfers[request]
            raise

    def poll(self, timeout: float) -> Sequence[Completion]:
        """Return the transfers that have ended."""
        over = self._scheduler.finished(timeout)
        with self._lock:
            for transfer in over:
                self._transfers.pop(transfer.request, None)
        return [Completion(transfer.request, transfer.error) for transfer in over]

    def abort(self, request: Request) -> None:
        """Abort a transfer; the others of the channel continue."""
        with self._lock:
            transfer = self._transfers.pop(request, None)
        if transfer:
            self._scheduler.abort(transfer)

    def close(self) -> None:
        """End all transfers and rails, on both sides."""
        self._scheduler.close(RDMATransportError("verbs: the channel was closed"))

    def _transfer(self, request: Request) -> Transfer:
        local = request.local
        remote = check(request)
        access = Access.LOCAL_WRITE if request.kind != Kind.WRITE else Access(0)
        entry = self._registrations.acquire(local.address, local.nbytes, access)
        is_add = request.kind == Kind.FETCH_ADD
        return Transfer(
            request,
            OPCODES[request.kind],
            entry,
            local.address - entry.address,
            remote,
            request.offset,
            local.nbytes,
            operand=(request.operand if is_add else request.compare) & WORD_MASK,
            swap=request.operand & WORD_MASK,
        )


def check(request: Request) -> Descriptor:
    """Return the remote memory of a request, after checking that the request is valid.

    Raises:
        RDMABoundsError: The range exceeds the remote memory.
        RDMAReadOnlyError: The destination is read-only.
        RDMAAlignmentError: The request is atomic, and its memory is not an aligned word.
        RDMATransportError: The descriptor is malformed.
    """
    try:
        remote = Descriptor.unpack(request.descriptor)
    except WireError as error:
        raise RDMATransportError(f"verbs: {error}") from error
    begin, end = request.offset, request.offset + request.local.nbytes
    if not 0 <= begin <= end <= remote.length:
        raise RDMABoundsError(
            f"bytes {begin} to {end} are outside of a buffer of {remote.length} bytes"
        )
    if request.kind != Kind.WRITE and not request.local.is_writable:
        raise RDMAReadOnlyError("the local memory is read-only: pass writable memory")
    if request.kind != Kind.READ and not remote.is_writable:
        raise RDMAReadOnlyError("the memory of the peer is read-only")
    if request.kind in (Kind.FETCH_ADD, Kind.COMPARE_AND_SWAP):
        addresses = [request.local.address, *(key[0] + begin for key in remote.keys)]
        if end - begin != WORD_LEN or any(address % WORD_LEN for address in addresses):
            raise RDMAAlignmentError(
                "atomic operations require 8 bytes at an address that is a multiple of 8"
            )
    return remote
