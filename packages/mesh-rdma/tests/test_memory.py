"""The kinds of memory that can be a buffer or a local side, using only the standard library."""

from __future__ import annotations

import array
import ctypes
import mmap
from typing import TYPE_CHECKING, Any

import pytest

import mesh_rdma
from mesh_rdma import (
    RDMABoundsError,
    RDMABuffer,
    RDMAReadOnlyError,
    RDMAReleased,
    RDMATransportError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

LEN = 4800


def from_mmap() -> mmap.mmap:
    memory = mmap.mmap(-1, LEN)
    memory.write(bytes(LEN))
    return memory


KINDS: dict[str, Callable[[], Any]] = {
    "bytearray": lambda: bytearray(LEN),
    "memoryview": lambda: memoryview(bytearray(LEN)),
    "cast": lambda: memoryview(bytearray(LEN)).cast("d"),
    "sliced": lambda: memoryview(bytearray(LEN + 100))[50:-50],
    "many dimensions": lambda: memoryview(bytearray(LEN)).cast("B", (3, 40, 40)),
    "array": lambda: array.array("i", bytes(LEN)),
    "mmap": from_mmap,
    "ctypes": lambda: (ctypes.c_int64 * (LEN // 8))(),
    "ctypes struct": lambda: type(
        "S", (ctypes.Structure,), {"_fields_": [("x", ctypes.c_char * LEN)]}
    )(),
    "arena": lambda: mesh_rdma.allocate(LEN),
    "part of the arena": lambda: mesh_rdma.allocate(LEN + 5000)[4999:-1],
}


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_used_in_place(kind: str) -> None:
    """Writes through a handle change the object, and vice versa."""
    memory = KINDS[kind]()
    buffer = RDMABuffer(memory)
    assert len(buffer) == LEN
    content = bytes(range(1, 241)) * 20
    buffer.write_from(content).get()
    assert bytes(memoryview(memory).cast("B")) == content
    here = KINDS[kind]()
    buffer.read_into(here).get()
    assert bytes(memoryview(here).cast("B")) == content
    buffer.drop().get()


@pytest.mark.parametrize(
    "memory",
    [bytes(LEN), memoryview(bytearray(LEN)).toreadonly(), mmap.mmap(-1, LEN, prot=mmap.PROT_READ)],
    ids=["bytes", "memoryview", "mmap"],
)
def test_read_only_memory_can_be_read_but_not_written(memory: Any) -> None:
    buffer = RDMABuffer(memory)
    assert not buffer.is_writable
    here = bytearray(LEN)
    buffer.read_into(here).get()
    assert here == bytes(LEN)
    with pytest.raises(RDMAReadOnlyError):
        buffer.write_from(b"x")
    with pytest.raises(RDMAReadOnlyError):
        RDMABuffer(bytearray(LEN)).read_into(memory)


def test_noncontiguous_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        RDMABuffer(memoryview(bytearray(LEN))[::2])


def test_an_object_without_memory_is_refused() -> None:
    for thing in ("text", 7, object(), [1, 2]):
        with pytest.raises(TypeError, match="no memory to share"):
            RDMABuffer(thing)


def test_empty_memory_is_refused() -> None:
    with pytest.raises(RDMABoundsError, match="empty memory"):
        RDMABuffer(bytearray())


def test_memory_cannot_be_resized_while_it_is_in_use() -> None:
    """A bytearray cannot be resized during a registration or a transfer, but can be afterwards."""
    memory = bytearray(LEN)
    buffer = RDMABuffer(memory)
    with pytest.raises(BufferError):
        memory.append(1)
    here = bytearray(1 << 20)
    RDMABuffer(bytearray(1 << 20)).read_into(here).get()
    here.append(1)
    buffer.drop().get()
    memory.append(1)


def test_memory_of_a_collected_handle_is_released() -> None:
    memory = bytearray(LEN)
    RDMABuffer(memory)
    memory.append(1)


def test_view_of_a_dropped_buffer_keeps_its_bytes() -> None:
    """A view shows the memory itself; the arena does not reuse the memory while the view exists."""
    memory = mesh_rdma.allocate(4096)
    memory[:5] = b"first"
    buffer = RDMABuffer(memory)
    view = buffer.view()
    assert view.readonly
    memory[:5] = b"later"
    assert view[:5] == b"later"
    buffer.drop().get()
    del memory
    another = mesh_rdma.allocate(4096)
    another[:5] = b"other"
    assert view[:5] == b"later"
    with pytest.raises(RDMAReleased):
        buffer.view()


def test_transport_is_chosen_by_name_or_refused_with_the_reason() -> None:
    buffer = RDMABuffer(bytearray(LEN))
    assert buffer.via("memory") == buffer
    with pytest.raises(RDMATransportError, match="in this process"):
        buffer.via("tcp")
    with pytest.raises(RDMATransportError, match="no transport is named 'pigeon'"):
        buffer.via("pigeon")
    assert "memory: taken to" in buffer.explain()
