"""Conformance tests of copies: the bytes are correct, and no other bytes are changed."""

from __future__ import annotations

import array
import pickle
from typing import TYPE_CHECKING, ClassVar

import pytest

from mesh_core.testing import wait_until
from mesh_rdma._errors import RDMABoundsError, RDMAReadOnlyError
from mesh_rdma._kit.harness import pattern

if TYPE_CHECKING:
    from mesh_rdma._kit.processes import Process

__all__ = ["CopyTests"]

SIZES = (1, 8, 4095, 65536, (1 << 20) + 1, (5 << 20) - 3, 64 << 20)
_GUARD = b"\xa5" * 64


class CopyTests:
    """Sequential reads and writes of one handle."""

    transport: ClassVar[str]

    def test_a_handle_is_small_and_equal_to_its_copies(self, owner: Process) -> None:
        """A handle is small, and a received copy of it equals the original."""
        registered = owner.register(1 << 20, seed=1)
        sent = pickle.dumps(registered.buffer)
        back = pickle.loads(sent)
        assert len(sent) < 1024
        assert (back, hash(back), len(back)) == (
            registered.handle,
            hash(registered.handle),
            1 << 20,
        )
        assert registered.buffer.backend == self.transport

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_a_read_returns_the_exact_bytes(self, owner: Process, nbytes: int) -> None:
        """A read of any size returns the bytes of the owner, and changes nothing beyond its end."""
        registered = owner.register(nbytes, seed=nbytes)
        here = bytearray(nbytes + len(_GUARD))
        here[nbytes:] = _GUARD
        assert registered.buffer.read_into(here).get() is None
        assert here[nbytes:] == _GUARD
        del here[nbytes:]
        assert here == pattern(nbytes, nbytes)

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_a_write_stores_the_exact_bytes(self, owner: Process, nbytes: int) -> None:
        """A write of any size copies all of the source to the beginning of the buffer."""
        registered = owner.register(nbytes + len(_GUARD), seed=3)
        registered.buffer.write_from(pattern(nbytes, nbytes)).get()
        assert registered.has_pattern(nbytes, nbytes)
        behind = pattern(3, nbytes + len(_GUARD))[nbytes:]
        assert registered.bytes_at(nbytes, len(_GUARD)) == behind

    def test_odd_offsets_and_slices_of_slices(self, owner: Process) -> None:
        """A copy may start at any byte: in a slice, at an offset, or both."""
        whole = pattern(5, 10_000)
        registered = owner.register(len(whole), seed=5)
        here = bytearray(10)
        registered.buffer[3:9999][7:5000].slice(11, 100).read_into(here, offset=13, length=10).get()
        assert here == whole[34:44]
        registered.buffer[4001:][2:4].write_from(b"xy").get()
        assert registered.bytes_at(4002, 4) == whole[4002:4003] + b"xy" + whole[4005:4006]

    def test_a_copy_of_zero_bytes_succeeds(self, owner: Process) -> None:
        """Copying zero bytes succeeds, even at the end of the buffer."""
        registered = owner.register(100, seed=1)
        here = bytearray(b"same")
        registered.buffer[100:].read_into(here).get()
        registered.buffer.read_into(here, offset=7, length=0).get()
        registered.buffer.write_from(b"", offset=100).get()
        assert here == b"same"
        assert registered.has_pattern(1, 100)

    def test_local_memory_of_any_shape(self, owner: Process) -> None:
        """Bytes are copied in memory order, regardless of the element type and the dimensions."""
        registered = owner.register(240, seed=9)
        numbers = array.array("d", bytes(240))
        registered.buffer.read_into(numbers).get()
        assert numbers.tobytes() == pattern(9, 240)
        cube = memoryview(bytearray(240)).cast("B", (4, 6, 10))
        registered.buffer.read_into(cube).get()
        assert cube.tobytes() == pattern(9, 240)
        part = memoryview(bytearray(260))[20:]
        registered.buffer.read_into(part).get()
        assert part == pattern(9, 240)

    def test_a_short_copy_completes_without_a_waiting_thread(self, owner: Process) -> None:
        """A short copy completes even if no thread waits for it."""
        registered = owner.register(64, seed=1)
        found = bytearray(64)
        future = registered.buffer.read_into(found)
        wait_until(future.done)
        assert found == pattern(1, 64)

    def test_each_read_returns_the_current_content(self, owner: Process) -> None:
        """Each read returns the current content."""
        registered = owner.register(4096)
        here = bytearray(4096)
        for seed in range(20):
            registered.fill(seed)
            registered.buffer.read_into(here).get()
            assert here == pattern(seed, 4096)

    def test_read_only_memory_is_refused_at_the_call(self, owner: Process) -> None:
        """Copies into read-only memory are refused at the call, on either side."""
        registered = owner.register(64, seed=1)
        for memory in (bytes(64), memoryview(bytearray(64)).toreadonly()):
            with pytest.raises(RDMAReadOnlyError):
                registered.buffer.read_into(memory)
        fixed = owner.register_read_only(64)
        assert not fixed.is_writable
        for call in (
            lambda: fixed.write_from(b"x"),
            lambda: fixed.fetch_add(1),
            lambda: fixed.compare_and_swap(0, 1),
        ):
            with pytest.raises(RDMAReadOnlyError):
                call()
        here = bytearray(64)
        fixed.read_into(here).get()
        assert here == pattern(1, 64)

    def test_out_of_bounds_ranges_are_refused_at_the_call(self, owner: Process) -> None:
        """Ranges that exceed the buffer or the local memory are refused at the call."""
        buffer = owner.register(64, seed=1).buffer
        here = bytearray(64)
        for call in (
            lambda: buffer.slice(60, 5),
            lambda: buffer.slice(-1, 5),
            lambda: buffer[::2],
            lambda: buffer.read_into(bytearray(63)),
            lambda: buffer.read_into(here, offset=1, length=64),
            lambda: buffer.read_into(here, offset=-1, length=1),
            lambda: buffer.read_into(here, offset=1 << 64, length=1),
            lambda: buffer.read_into(here, length=-1),
            lambda: buffer[10:20].read_into(here, length=11),
            lambda: buffer.write_from(bytes(65)),
            lambda: buffer.write_from(bytes(3), length=4),
            lambda: buffer.write_from(b"abc", offset=62),
            lambda: buffer.fetch_add(1, offset=57),
            lambda: buffer.fetch_add(1 << 64),
            lambda: buffer.compare_and_swap(-1, 0),
        ):
            with pytest.raises(RDMABoundsError):
                call()
        assert here == bytes(64)
