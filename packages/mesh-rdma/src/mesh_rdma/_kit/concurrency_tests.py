"""Conformance tests of concurrent transfers, batches and atomic operations."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ClassVar

import pytest

from mesh_rdma._buffers.action import RDMAAction
from mesh_rdma._errors import (
    RDMAAlignmentError,
    RDMABoundsError,
    RDMAReadOnlyError,
    RDMAReleased,
)
from mesh_rdma._kit.harness import pattern

if TYPE_CHECKING:
    from mesh_rdma._kit.processes import Process

__all__ = ["ConcurrencyTests"]

_THREADS = 8
_PART = 100_003
_LARGE = 6 << 20
_ADDS = 200


class ConcurrencyTests:
    """Concurrent operations."""

    transport: ClassVar[str]

    def test_threads_do_not_interfere_with_each_other(self, owner: Process) -> None:
        """Each thread reads back its own writes while other threads use the same buffer."""
        registered = owner.register(_THREADS * _PART)

        def work(rank: int) -> None:
            mine = registered.buffer.slice(rank * _PART, _PART)
            here = bytearray(_PART)
            for round in range(6):
                mine.write_from(pattern(rank * 100 + round, _PART)).get()
                mine.read_into(here).get()
                assert here == pattern(rank * 100 + round, _PART)

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(work, range(_THREADS)))
        for rank in range(_THREADS):
            assert registered.has_pattern(rank * 100 + 5, _PART, offset=rank * _PART)

    def test_tasks_await_transfers_concurrently(self, owner: Process) -> None:
        """Coroutines await transfers, small and large, without blocking each other."""
        registered = owner.register(_LARGE, seed=2)
        whole = pattern(2, _LARGE)

        async def read(rank: int) -> None:
            length = _LARGE if rank % 8 == 0 else rank * 997
            here = bytearray(length)
            await registered.buffer.read_into(here, length=length)
            assert here == whole[:length]

        async def main() -> None:
            await asyncio.gather(*(read(rank) for rank in range(32)))

        asyncio.run(main())

    def test_processes_read_at_the_same_time(
        self, owner: Process, reader: Process, third: Process
    ) -> None:
        """Several processes read the same bytes concurrently."""
        registered = owner.register(_LARGE, seed=4)
        with ThreadPoolExecutor(2) as pool:
            found = pool.map(
                lambda place: place.do("read", registered.handle, self.transport), (reader, third)
            )
        assert all(one == pattern(4, _LARGE) for one in found)

    def test_batch_of_several_buffers_and_owners(self, owner: Process, other: Process) -> None:
        """A batch uses several buffers of several owners, and can be submitted again."""
        first, second = owner.register(_LARGE, seed=1), owner.register(1000, seed=2)
        third, fourth = other.register(_LARGE, seed=3), other.register(77)
        one, two, three = bytearray(_LARGE), bytearray(1000), bytearray(_LARGE)
        source = bytearray(pattern(4, 77))
        action = (
            RDMAAction()
            .read_remote(one, first.buffer)
            .read_remote(two, second.buffer)
            .read_remote(three, third.buffer)
            .write_remote(fourth.buffer, source)
        )
        assert len(action) == 4
        action.submit().get()
        for here, there in (
            (one, pattern(1, _LARGE)),
            (two, pattern(2, 1000)),
            (three, pattern(3, _LARGE)),
        ):
            assert here == there
        assert fourth.has_pattern(4, 77)
        second.fill(5)
        source[:] = pattern(6, 77)
        action.submit(timeout=30.0).get()
        assert two == pattern(5, 1000)
        assert fourth.has_pattern(6, 77)

    def test_an_empty_batch_succeeds_and_invalid_operations_are_refused(
        self, owner: Process
    ) -> None:
        """An empty batch is done immediately; invalid operations are refused when added."""
        assert RDMAAction().submit().get() is None
        buffer = owner.register(64, seed=1).buffer
        action = RDMAAction()
        with pytest.raises(RDMABoundsError):
            action.read_remote(bytearray(63), buffer)
        with pytest.raises(RDMAReadOnlyError):
            action.read_remote(bytes(64), buffer)
        with pytest.raises(RDMABoundsError):
            action.write_remote(buffer, bytes(65))
        assert len(action) == 0

    def test_batch_fails_as_a_whole(self, owner: Process) -> None:
        """The error of one copy is the error of the batch, and the next submission works."""
        lost, kept = owner.register(_LARGE, seed=1), owner.register(_LARGE, seed=2)
        lost_here, here = bytearray(_LARGE), bytearray(_LARGE)
        action = RDMAAction().read_remote(here, kept.buffer).read_remote(lost_here, lost.buffer)
        action.submit().get()
        owner.do("drop", lost.number)
        with pytest.raises(RDMAReleased):
            action.submit().get()
        kept.fill(3)
        RDMAAction().read_remote(here, kept.buffer).submit().get()
        assert here == pattern(3, _LARGE)

    def test_concurrent_additions_are_exact(
        self, owner: Process, reader: Process, third: Process
    ) -> None:
        """Threads and processes add to one word; each addition is counted exactly once."""
        registered = owner.register(64)
        word = registered.buffer[8:]

        def add(place: Process | None) -> int:
            if place is not None:
                found: int = place.do("add", registered.handle[8:], self.transport, _ADDS)
                return found
            return sum(word.fetch_add(1).get() for _ in range(_ADDS))

        who = (reader, third, None, None, None)
        with ThreadPoolExecutor(len(who)) as pool:
            sums = list(pool.map(add, who))
        total = _ADDS * len(who)
        assert int.from_bytes(registered.bytes_at(8, 8), "little") == total
        # Each value from 0 to the total was returned exactly once.
        assert sum(sums) == total * (total - 1) // 2

    def test_only_one_of_several_concurrent_swaps_succeeds(self, owner: Process) -> None:
        """Of concurrent swaps of the same word, exactly one finds the expected value."""
        registered = owner.register(16)

        def swap(rank: int) -> int:
            return registered.buffer.compare_and_swap(0, rank, offset=8).get()

        with ThreadPoolExecutor(_THREADS) as pool:
            found = list(pool.map(swap, range(1, _THREADS + 1)))
        winner = int.from_bytes(registered.bytes_at(8, 8), "little")
        assert found.count(0) == 1
        assert found.index(0) + 1 == winner
        assert set(found) == {0, winner}

    def test_words_are_64_bits_wide_and_aligned(self, owner: Process) -> None:
        """A sum wraps around at 2**64, and an unaligned word raises a typed error."""
        registered = owner.register(32)
        assert registered.buffer.fetch_add((1 << 64) - 1).get() == 0
        assert registered.buffer.fetch_add(2).get() == (1 << 64) - 1
        assert registered.buffer.fetch_add(0).get() == 1
        refused = registered.buffer.fetch_add(1, offset=3)
        with pytest.raises(RDMAAlignmentError):
            refused.get()
        assert registered.bytes_at(0, 32) == (1).to_bytes(32, "little")
