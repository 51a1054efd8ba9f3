"""Atomic operations in one batch with copies."""

from __future__ import annotations

import sys

import pytest

from mesh_core import Actor, endpoint
from mesh_core.testing import LocalProcs, local_procs
from mesh_rdma import RDMAAction, RDMABoundsError, RDMABuffer, RDMAReadOnlyError, get_rdma_backend

__all__ = ["local_procs"]  # This is a fixture, which pytest finds by name.


class Owner(Actor):
    @endpoint
    def register(self) -> RDMABuffer:
        self.memory = bytearray(16)
        return RDMABuffer(self.memory)


def word(memory: bytearray) -> int:
    return int.from_bytes(memory, sys.byteorder)


def test_a_batch_mixes_atomic_operations_and_copies(local_procs: LocalProcs) -> None:
    procs = local_procs({"procs": 2})
    there, other = procs.spawn("owners", Owner).register.call().get().values()
    before, found, copied = bytearray(8), bytearray(8), bytearray(8)
    there.fetch_add(40).get()
    other.compare_and_swap(0, 7).get()
    action = RDMAAction().fetch_add(before, there, 2).compare_and_swap(found, other, 7, 9)
    action.read_remote(copied, there[8:])
    assert len(action) == 3
    action.submit().get()
    assert (word(before), word(found)) == (40, 7)
    assert there.fetch_add(0).get() == 42
    assert other.fetch_add(0).get() == 9


def test_invalid_atomic_operations_are_refused_at_the_call() -> None:
    buffer = RDMABuffer(bytearray(16))
    with pytest.raises(RDMABoundsError):
        RDMAAction().fetch_add(bytearray(7), buffer, 1)
    with pytest.raises(RDMABoundsError):
        RDMAAction().compare_and_swap(bytearray(8), buffer[:7], 1, 2)
    with pytest.raises(RDMABoundsError, match="64-bit"):
        RDMAAction().fetch_add(bytearray(8), buffer, -1)
    with pytest.raises(RDMAReadOnlyError):
        RDMAAction().fetch_add(bytes(8), buffer, 1)


def test_the_backend_is_ibverbs_or_tcp() -> None:
    assert get_rdma_backend() in ("ibverbs", "tcp")
