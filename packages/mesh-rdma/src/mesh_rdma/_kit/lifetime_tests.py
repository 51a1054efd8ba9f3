"""Conformance tests of the lifetime of buffers."""

from __future__ import annotations

import gc
import pickle
from typing import TYPE_CHECKING, ClassVar

import pytest

from mesh_core.testing import wait_until
from mesh_rdma._errors import RDMAReleased
from mesh_rdma._kit.harness import pattern

if TYPE_CHECKING:
    from mesh_rdma._buffers.buffer import RDMABuffer
    from mesh_rdma._kit.processes import Process

__all__ = ["LifetimeTests"]

_LARGE = 8 << 20


class LifetimeTests:
    """Drops, leases and holders."""

    transport: ClassVar[str]

    @pytest.mark.parametrize("is_by_owner", [True, False], ids=["owner", "holder"])
    def test_all_operations_fail_after_a_drop(self, owner: Process, is_by_owner: bool) -> None:
        """A drop by either side ends the buffer and its slices for all, and happens once."""
        registered = owner.register(4096, seed=1)
        buffer, part = registered.buffer, registered.buffer[100:200]
        if is_by_owner:
            owner.do("drop", registered.number)
        else:
            buffer.drop().get()
        for future in (
            buffer.read_into(bytearray(4096)),
            part.read_into(bytearray(100)),
            buffer.write_from(b"never"),
            buffer.fetch_add(1),
            buffer.compare_and_swap(0, 1),
            buffer.drop(),
            part.drop(),
        ):
            with pytest.raises(RDMAReleased):
                future.get()
        assert registered.has_pattern(1, 4096)

    def test_a_drop_aborts_transfers_and_prevents_later_writes(
        self, owner: Process, reader: Process
    ) -> None:
        """After a drop is done, no other process writes to the memory of the owner."""
        registered = owner.register(_LARGE, seed=1)
        copies = [
            reader.do("begin_copies", registered.handle, self.transport, verb)
            for verb in ("write", "read", "write")
        ]
        owner.do("drop", registered.number)
        registered.fill(7)
        errors = [reader.do("error_of_copies", one) for one in copies]
        assert errors == ["RDMAReleased"] * 3
        assert registered.has_pattern(7, _LARGE)

    def test_a_drop_does_not_affect_other_buffers_of_the_owner(
        self, owner: Process, reader: Process
    ) -> None:
        """Transfers of one buffer continue while another is dropped and its slot is reused."""
        kept = owner.register(_LARGE, seed=2)
        copies = reader.do("begin_copies", kept.handle, self.transport, "read")
        for seed in range(10):
            gone = owner.register(5000, seed=seed)
            here = bytearray(5000)
            gone.buffer.read_into(here).get()
            assert here == pattern(seed, 5000)
            owner.do("drop", gone.number)
        assert reader.do("end_copies", copies) == ""

    def test_a_drop_by_one_holder_affects_the_other_holder(
        self, owner: Process, reader: Process
    ) -> None:
        """Each holder can use and drop the buffer; the other holder gets an error afterwards."""
        registered = owner.register(5000, seed=3)
        assert reader.do("read", registered.handle, self.transport) == pattern(3, 5000)
        reader.do("write", registered.handle, self.transport, 4)
        here = bytearray(5000)
        registered.buffer.read_into(here).get()
        assert here == pattern(4, 5000)
        registered.buffer.drop().get()
        with pytest.raises(RDMAReleased):
            reader.do("read", registered.handle, self.transport)

    def test_a_forwarded_handle_keeps_its_buffer_alive(
        self, owner: Process, reader: Process, third: Process
    ) -> None:
        """A buffer lives as long as one process has a handle, even if others dropped theirs."""
        registered = owner.register(5000, seed=6)
        number = reader.do("keep_handle", registered.handle)
        kept = third.do("keep_handle", reader.do("get_handle", number))
        owner.do("drop_handle", registered.number)
        del registered
        gc.collect()
        reader.do("clear")
        handle = third.do("get_handle", kept)
        assert third.do("read", handle, self.transport) == pattern(6, 5000)

    def test_collected_handles_free_the_registration(self, owner: Process) -> None:
        """A buffer is released when no process has a handle for it."""
        before = owner.registrations()
        registered = owner.register(5000, seed=6)
        owner.do("drop_handle", registered.number)
        here = bytearray(5000)
        registered.buffer.read_into(here).get()
        assert owner.registrations() <= before + 1
        del registered
        gc.collect()
        wait_until(lambda: owner.registrations() <= before)

    def test_an_unopened_handle_expires(self, owner: Process) -> None:
        """A pickled handle keeps its buffer alive while it may be in transit, but no longer."""
        before = owner.registrations()
        kept, expired = (owner.register(5000, seed=1).number for _ in range(2))
        gc.collect()
        pickled = owner.do("pickle_and_drop", kept, 3600.0)
        owner.do("pickle_and_drop", expired, 0.01)
        # Fewer, if registrations of an earlier test are released only now.
        wait_until(lambda: owner.registrations() <= before + 1)
        late: RDMABuffer = pickle.loads(pickled)
        here = bytearray(5000)
        late.via(self.transport).read_into(here).get()
        assert here == pattern(1, 5000)
        late.drop().get()
        assert owner.registrations() <= before
