"""Replication: one copy of a buffer per machine, which all processes of the machine can view."""

from __future__ import annotations

import struct
import threading
import time
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

from mesh_core.spi import CompletionFuture
from mesh_rdma import _core
from mesh_rdma._buffers.arena import allocate
from mesh_rdma._buffers.buffer import RDMABuffer, restore
from mesh_rdma._collectives.spread import spread
from mesh_rdma._collectives.tree_coordinator import machine_of
from mesh_rdma._completions.task import Task
from mesh_rdma._errors import (
    RDMABoundsError,
    RDMACancelled,
    RDMAError,
    RDMATimeout,
    RDMATransportError,
)
from mesh_rdma._requests.handlers import register_handler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mesh_core import Future

__all__ = ["Replicas", "replicate"]

_ALLOCATE = "allocate"
_LEN = struct.Struct("<Q")
_TIMEOUT_S = 60.0
_RESPONSE_S = 30.0


class Replicas:
    """Copies of one buffer, one per machine, created by `replicate` and sent in messages.

    A copy is kept as long as any process has these replicas or a view of the copy.
    """

    def __init__(self, copies: Mapping[bytes, RDMABuffer]) -> None:
        self._copies = dict(copies)

    @property
    def buffers(self) -> list[RDMABuffer]:
        """All copies."""
        return list(self._copies.values())

    @property
    def here(self) -> RDMABuffer:
        """The copy on the machine of this process.

        Raises:
            RDMATransportError: This machine does not have a copy.
        """
        found = self._copies.get(_core.machine())
        if found is None:
            raise RDMATransportError(
                f"none of {len(self._copies)} copies is on this machine: pass a buffer of a process"
                " on this machine to replicate()"
            )
        return found

    def view(self) -> memoryview:
        """Return a read-only view of the copy on this machine, without another copy.

        Raises:
            RDMATransportError: This machine does not have a copy.
            RDMAReleased: The copy was dropped.
        """
        return self.here.view()

    def refresh(self, src: RDMABuffer, *, timeout: float | None = _TIMEOUT_S) -> Future[None]:
        """Copy a buffer to all replicas, like `spread`; existing views see the memory change.

        The future raises `RDMAIncomplete` if some replicas were not filled.

        Raises:
            RDMABoundsError: `src` is longer than the replicas.
        """
        return spread(src, self.buffers, timeout=timeout)

    def __repr__(self) -> str:
        return f"<Replicas on {len(self._copies)} machines>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Replicas, (self._copies,)


def replicate(
    src: RDMABuffer, near: Sequence[RDMABuffer], *, timeout: float | None = _TIMEOUT_S
) -> Future[Replicas]:
    """Create one copy of a buffer on each machine of some processes, using the tree of `spread`.

    Each process of such a machine can access the copy with `Replicas.view`.

    The future raises `RDMAPeerDied` if all processes of a machine are gone, `RDMAIncomplete` if
    copies could not be filled, or the error that ended the replication.

    Args:
        src: The buffer to copy.
        near: One buffer of each process that will use the replicas; any of its buffers will do. On
            each machine, the first of these processes that is alive allocates the memory.
        timeout: The limit in seconds; None means no limit.

    Raises:
        RDMABoundsError: `near` or `src` is empty.
    """
    if not near or not src.size():
        raise RDMABoundsError("replicate() got no buffers, or empty ones: pass at least one byte")
    replication = _Replication(src, near, timeout)
    return CompletionFuture(Task(replication.run, replication.end).start())


class _Replication:
    """Replicas that are being allocated and filled."""

    def __init__(self, src: RDMABuffer, near: Sequence[RDMABuffer], timeout: float | None) -> None:
        self._src = src
        self._near: dict[bytes, list[RDMABuffer]] = defaultdict(list)
        for buffer in near:
            self._near[machine_of(buffer)].append(buffer)
        self._until = None if timeout is None else time.monotonic() + timeout
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._spreading: Future[None] | None = None

    def run(self) -> Replicas:
        """Allocate memory on all machines concurrently, and fill it."""
        allocations = [
            Task(partial(self._allocate_near, near), _cannot_cancel).start()
            for near in self._near.values()
        ]
        for allocation in allocations:
            allocation.wait(None)
        buffers = [allocation.outcome() for allocation in allocations]
        copies = dict(zip(self._near, buffers, strict=True))
        left = self._left()
        with self._lock:
            if self._is_cancelled:
                raise RDMACancelled("the replicas were dropped before they were filled")
            spreading = self._spreading = spread(self._src, list(copies.values()), timeout=left)
        spreading.get()
        return Replicas(copies)

    def end(self) -> None:
        """Cancel the replication."""
        with self._lock:
            self._is_cancelled = True
            spreading = self._spreading
        if spreading is not None:
            spreading.cancel()

    def _left(self) -> float | None:
        if self._until is None:
            return None
        left = self._until - time.monotonic()
        if left <= 0:
            raise RDMATimeout("the memory for the replicas was not allocated in time")
        return left

    def _allocate_near(self, near: Sequence[RDMABuffer]) -> RDMABuffer:
        request = _LEN.pack(self._src.size())
        for place, buffer in enumerate(near, 1):
            left = self._left()
            limit = _RESPONSE_S if left is None else min(left, _RESPONSE_S)
            try:
                handle = buffer._handle.exchange(_ALLOCATE, request, limit)
            except RDMAError:
                if place == len(near):
                    raise
            else:
                return restore(handle, 0, self._src.size())
        raise AssertionError("each machine has a process")


def _cannot_cancel() -> None:
    """Do nothing: an allocation cannot be cancelled, but it has a time limit."""


def _handle_allocate(request: bytes) -> bytes:
    (length,) = _LEN.unpack(request)
    # The handle counts as in transit until it arrives; then the client holds the memory.
    return RDMABuffer(allocate(length))._handle.encode()


register_handler(_ALLOCATE, _handle_allocate)
