"""The harness of the conformance kit: registers and copies memory in one process."""

from __future__ import annotations

import ctypes
import pickle
import random
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mesh_core import Actor, endpoint
from mesh_rdma import _core
from mesh_rdma._buffers.buffer import RDMABuffer
from mesh_rdma._buffers.memory import memory_of
from mesh_rdma._cuda.copier import copy_now
from mesh_rdma._cuda.driver import require_driver
from mesh_rdma._staged.pinned_memory import own_pieces, served_pieces

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Harness", "HarnessActor", "bytes_of", "pattern", "put_bytes"]

# The length is prime, so pages, chunks and pieces of a pattern differ from each other.
_BLOCK_LEN = 65521


@lru_cache(maxsize=2)
def pattern(seed: int, nbytes: int) -> bytes:
    """Return bytes that depend on their position and on the seed."""
    block = random.Random(seed).randbytes(_BLOCK_LEN)
    count, rest = divmod(nbytes, _BLOCK_LEN)
    return b"".join([block] * count + [block[:rest]])


def bytes_of(memory: Any, offset: int, length: int) -> bytes:
    """Return a copy of bytes of host memory or device memory."""
    if _is_of_host(memory):
        return bytes(memoryview(memory).cast("B")[offset : offset + length])
    local = memory_of(memory)
    assert local.device is not None
    buffer = ctypes.create_string_buffer(length)
    here, there = ctypes.addressof(buffer), local.address + offset
    copy_now(require_driver(), local.device, here, there, length)
    return buffer.raw


def put_bytes(memory: Any, content: bytes) -> None:
    """Write bytes to the beginning of host memory or device memory."""
    if _is_of_host(memory):
        memoryview(memory).cast("B")[: len(content)] = content
        return
    local = memory_of(memory)
    assert local.device is not None
    source = ctypes.create_string_buffer(content, len(content))
    here, there = ctypes.addressof(source), local.address
    copy_now(require_driver(), local.device, there, here, len(content))


def _is_of_host(memory: Any) -> bool:
    try:
        return memoryview(memory) is not None
    except TypeError:
        return False


def _read_only(memory: Any) -> Any:
    if _is_of_host(memory):
        return memoryview(memory).cast("B").toreadonly()
    local = memory_of(memory)
    return _core.Local.at(local.address, local.nbytes, False, memory, local.device)


class Harness:
    """The buffers of one process, by number, and the copies that run in its threads."""

    def __init__(self) -> None:
        self._memory: dict[int, Any] = {}
        self._buffers: dict[int, RDMABuffer] = {}
        self._copies: dict[int, _Copies] = {}
        self._next = 0

    def set_transit_timeout(self, seconds: float) -> None:
        """Set how long handles of this process may be in transit."""
        _core.set_transit_timeout(seconds)

    def register(
        self, allocate: Callable[[int], Any], nbytes: int, seed: int | None
    ) -> tuple[int, RDMABuffer]:
        """Register new memory with a pattern or zeros; return its number and a handle."""
        memory = allocate(nbytes)
        if seed is not None:
            put_bytes(memory, pattern(seed, nbytes))
        elif not _is_of_host(memory):
            put_bytes(memory, bytes(nbytes))
        number = self._number()
        self._memory[number] = memory
        self._buffers[number] = buffer = RDMABuffer(memory)
        return number, buffer

    def register_read_only(self, allocate: Callable[[int], Any], nbytes: int) -> RDMABuffer:
        """Register read-only memory with pattern 1."""
        memory = allocate(nbytes)
        put_bytes(memory, pattern(1, nbytes))
        number = self._number()
        self._buffers[number] = buffer = RDMABuffer(_read_only(memory))
        return buffer

    def bytes_at(self, number: int, offset: int, length: int) -> bytes:
        """Return a copy of bytes of the memory."""
        return bytes_of(self._memory[number], offset, length)

    def has_pattern(self, number: int, offset: int, length: int, seed: int) -> bool:
        """Return whether the memory at `offset` begins with a pattern."""
        # Bytes are compared with one call, whereas views are compared byte by byte.
        return self.bytes_at(number, offset, length) == pattern(seed, length)

    def fill(self, number: int, seed: int) -> None:
        """Write a pattern to memory directly, as the owner does, without a handle."""
        memory = self._memory[number]
        put_bytes(memory, pattern(seed, memory_of(memory).nbytes))

    def drop(self, number: int) -> None:
        """Release a registration; the memory is kept."""
        self._buffers[number].drop().get()

    def drop_handle(self, number: int) -> None:
        """Drop the handle of a buffer; the memory is kept."""
        del self._buffers[number]

    def pickle_and_drop(self, number: int, seconds: float) -> bytes:
        """Return a pickled handle that may be in transit for `seconds`, and drop the handle."""
        _core.set_transit_timeout(seconds)
        return pickle.dumps(self._buffers.pop(number))

    def wait(self) -> None:
        """Wait forever."""
        threading.Event().wait()

    def clear(self) -> None:
        """Drop all buffers and memory."""
        for number in list(self._copies):
            self.end_copies(number)
        self._buffers.clear()
        self._memory.clear()

    def counts(self) -> tuple[int, int, int, int]:
        """Return the numbers of registrations and of connections of this process.

        The pinned pieces of `staged` stay registered for the next copy; they are not buffers of a
        test, so they are not counted.
        """
        valid, deferred, incoming, outgoing = _core.counts()
        pieces = len(own_pieces) + len(served_pieces)
        return valid - pieces, deferred, incoming, outgoing

    def read(self, buffer: RDMABuffer, transport: str) -> bytes:
        """Read all of a buffer in this process."""
        into = bytearray(buffer.size())
        buffer.via(transport).read_into(into).get()
        return bytes(into)

    def write(self, buffer: RDMABuffer, transport: str, seed: int) -> None:
        """Write all of a buffer from this process."""
        buffer.via(transport).write_from(pattern(seed, buffer.size())).get()

    def add(self, buffer: RDMABuffer, transport: str, count: int) -> int:
        """Add one to the first word `count` times; return the sum of the previous values."""
        word = buffer.via(transport)
        return sum(word.fetch_add(1).get() for _ in range(count))

    def keep_handle(self, buffer: RDMABuffer) -> int:
        """Keep a handle; return its number."""
        number = self._number()
        self._buffers[number] = buffer
        return number

    def get_handle(self, number: int) -> RDMABuffer:
        """Return a handle that is kept here."""
        return self._buffers[number]

    def begin_copies(self, buffer: RDMABuffer, transport: str, verb: str) -> int:
        """Start to copy repeatedly; return when the first copy is done."""
        number = self._number()
        self._copies[number] = copies = _Copies(buffer.via(transport), verb)
        copies.is_running.wait()
        return number

    def end_copies(self, number: int) -> str:
        """End the copies; return the name of the error that ended them, or an empty string."""
        return self._copies.pop(number).end()

    def error_of_copies(self, number: int) -> str:
        """Wait until the copies fail; return the name of the error."""
        return self._copies.pop(number).error()

    def _number(self) -> int:
        self._next += 1
        return self._next


# How long one copy may take, in seconds, also in an emulated machine under load.
_COPY_LIMIT_S = 60.0


class _Copies:
    """A thread that copies all of a buffer repeatedly until a copy fails."""

    def __init__(self, buffer: RDMABuffer, verb: str) -> None:
        self._buffer = buffer
        self._verb = verb
        self._is_ending = False
        self._error = ""
        self.is_running = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> str:
        self._is_ending = True
        return self.error()

    def error(self) -> str:
        self._thread.join()
        return self._error

    def _run(self) -> None:
        here = bytearray(self._buffer.size())
        try:
            while not self._is_ending:
                if self._verb == "read":
                    self._buffer.read_into(here, timeout=_COPY_LIMIT_S).get()
                else:
                    self._buffer.write_from(here, timeout=_COPY_LIMIT_S).get()
                self.is_running.set()
        except Exception as error:
            self._error = type(error).__name__
        finally:
            self.is_running.set()


class HarnessActor(Actor):
    """A harness in another process."""

    def __init__(self) -> None:
        self._harness = Harness()

    @endpoint
    def do(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method of the harness."""
        return getattr(self._harness, name)(*arguments)
