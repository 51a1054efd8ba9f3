"""Steps of programs that register memory, and read and write each other's across hosts.

The test passes the handles between the programs, as messages of a mesh would.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import threading
import time
from dataclasses import dataclass, field

from mesh_rdma import RDMABuffer, RDMAError, configure
from mesh_rdma.testing import RejectedConnections, connected_peers, rejected_connections

# These programs have no job, so Mesh learns only from the handles that other hosts connect.
configure(rdma_listen="all")

#: Exceeds the duration of every copy that completes, also on a busy machine.
LIMIT_S = 60.0

#: A byte that does not occur in `pattern`.
UNTOUCHED = 0xAA


@dataclass
class Place:
    """The memory and the handles of the program."""

    offered: dict[str, tuple[bytearray, RDMABuffer]] = field(default_factory=dict)
    reached: dict[str, RDMABuffer] = field(default_factory=dict)


place = Place()
_pause = threading.Event()


@dataclass
class CopyOutcome:
    """The outcome of a copy: `done` or the name of the error, its message, and the duration."""

    name: str
    message: str
    took_s: float


def offer(name: str, nbytes: int) -> bytes:
    """Register memory that contains a pattern, and return the pickled handle."""
    memory = pattern(nbytes)
    buffer = RDMABuffer(memory)
    place.offered[name] = (memory, buffer)
    return pickle.dumps(buffer)


def take(name: str, handle: bytes) -> str:
    """Store a handle and return the name of the transport that reaches it."""
    place.reached[name] = pickle.loads(handle)
    return place.reached[name].backend


def read(name: str, nbytes: int, timeout: float | None = LIMIT_S) -> CopyOutcome:
    """Read the buffer and check that the data is the pattern."""
    into = bytearray([UNTOUCHED]) * nbytes
    buffer = place.reached[name]
    outcome = _timed(lambda: buffer.read_into(into, length=nbytes, timeout=timeout).get())
    if outcome.name == "done":
        assert into == pattern(nbytes), "what was read is not what was offered"
    before = bytes(into)
    _pause.wait(0.05)
    assert before == into, "bytes came after the end"
    return outcome


def write(name: str, nbytes: int, timeout: float | None = LIMIT_S) -> CopyOutcome:
    """Write `nbytes` bytes of the value `UNTOUCHED`."""
    data = bytes([UNTOUCHED]) * nbytes
    return _timed(lambda: place.reached[name].write_from(data, timeout=timeout).get())


def written(name: str) -> int:
    """Return the number of bytes at the start of the memory that `write` has written."""
    memory, _ = place.offered[name]
    return len(memory) - len(memory.lstrip(bytes([UNTOUCHED])))


def address(name: str) -> int:
    """Return the address of the memory in this process."""
    memory, _ = place.offered[name]
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def rate(name: str, nbytes: int) -> float:
    """Read the buffer and return the throughput in bytes per second."""
    into = bytearray(nbytes)
    started = time.monotonic()
    place.reached[name].read_into(into, length=nbytes, timeout=LIMIT_S).get()
    return nbytes / (time.monotonic() - started)


def add(name: str, number: int) -> int:
    """Add to the first word and return its previous value."""
    return place.reached[name].fetch_add(number).get()


def drop(name: str) -> None:
    """Deregister the memory."""
    place.offered.pop(name)[1].drop().get()


def refused() -> RejectedConnections:
    """Return the number of refused connections by reason."""
    return rejected_connections()


def left_behind() -> dict[str, int]:
    """Count the system resources that a process of this program holds."""
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "visitors": connected_peers(),
    }


def settle(limit_s: float, at_most: dict[str, int]) -> dict[str, int]:
    """Wait until no count exceeds its limit or the time is over; return the counts."""
    until = time.monotonic() + limit_s
    held = left_behind()
    while any(held[name] > most for name, most in at_most.items()) and time.monotonic() < until:
        _pause.wait(0.1)
        held = left_behind()
    return held


def pattern(nbytes: int) -> bytearray:
    """Return bytes in which every misplaced byte is detectable, without the byte `UNTOUCHED`."""
    block = bytes(value for at in range(1021) if (value := at * 7 % 256) != UNTOUCHED)
    return bytearray((block * (nbytes // len(block) + 1))[:nbytes])


def _timed(copy: object) -> CopyOutcome:
    assert callable(copy)
    started = time.monotonic()
    try:
        copy()
    except RDMAError as error:
        return CopyOutcome(type(error).__name__, str(error), time.monotonic() - started)
    return CopyOutcome("done", "", time.monotonic() - started)
