"""Steps of programs that offer memory to each other, and read and write it across hosts.

The test carries the handles from one to the other, as messages of a mesh do.
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

# These programs are no job, so only the handles say that other hosts are to connect.
configure(rdma_listen="all")

#: Longer than any copy takes that does come to its end, also on a busy machine.
LIMIT_S = 60.0

#: A byte that a read or a write of the tests has not put there.
UNTOUCHED = 0xAA


@dataclass
class Place:
    """What the program has."""

    offered: dict[str, tuple[bytearray, RDMABuffer]] = field(default_factory=dict)
    reached: dict[str, RDMABuffer] = field(default_factory=dict)


place = Place()
_pause = threading.Event()


@dataclass
class Ended:
    """How a copy has ended: the name of its error or `done`, its words, and how long it took."""

    name: str
    words: str
    took_s: float


def offer(name: str, nbytes: int) -> bytes:
    """Offers memory with a pattern in it; returns the handle."""
    memory = pattern(nbytes)
    buffer = RDMABuffer(memory)
    place.offered[name] = (memory, buffer)
    return pickle.dumps(buffer)


def take(name: str, handle: bytes) -> str:
    """Keeps a handle; returns by which transport it is reached."""
    place.reached[name] = pickle.loads(handle)
    return place.reached[name].backend


def read(name: str, nbytes: int, timeout: float | None = LIMIT_S) -> Ended:
    """Reads, and checks that what was read is the pattern."""
    into = bytearray([UNTOUCHED]) * nbytes
    buffer = place.reached[name]
    ended = _timed(lambda: buffer.read_into(into, length=nbytes, timeout=timeout).get())
    if ended.name == "done":
        assert into == pattern(nbytes), "what was read is not what was offered"
    before = bytes(into)
    _pause.wait(0.05)
    assert before == into, "bytes came after the end"
    return ended


def write(name: str, nbytes: int, timeout: float | None = LIMIT_S) -> Ended:
    """Writes so many bytes, all the same."""
    data = bytes([UNTOUCHED]) * nbytes
    return _timed(lambda: place.reached[name].write_from(data, timeout=timeout).get())


def written(name: str) -> int:
    """Says how many bytes at the beginning of what is offered were written by `write`."""
    memory, _ = place.offered[name]
    return len(memory) - len(memory.lstrip(bytes([UNTOUCHED])))


def address(name: str) -> int:
    """Says where what is offered is in the memory of this process."""
    memory, _ = place.offered[name]
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def rate(name: str, nbytes: int) -> float:
    """Reads; returns how many bytes a second that were."""
    into = bytearray(nbytes)
    started = time.monotonic()
    place.reached[name].read_into(into, length=nbytes, timeout=LIMIT_S).get()
    return nbytes / (time.monotonic() - started)


def add(name: str, number: int) -> int:
    """Adds to the first word; returns what was there."""
    return place.reached[name].fetch_add(number).get()


def drop(name: str) -> None:
    """Takes back what was offered."""
    place.offered.pop(name)[1].drop().get()


def refused() -> RejectedConnections:
    """Says how many connections were refused, by reason."""
    return rejected_connections()


def left_behind() -> dict[str, int]:
    """Counts what a process of this program holds of the system."""
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "visitors": connected_peers(),
    }


def settle(limit_s: float, at_most: dict[str, int]) -> dict[str, int]:
    """Waits until no more is held than that, or until the time is over; returns what is held."""
    until = time.monotonic() + limit_s
    held = left_behind()
    while any(held[name] > most for name, most in at_most.items()) and time.monotonic() < until:
        _pause.wait(0.1)
        held = left_behind()
    return held


def pattern(nbytes: int) -> bytearray:
    """Bytes of which none is where another one is expected, nor the one that is written."""
    block = bytes(value for at in range(1021) if (value := at * 7 % 256) != UNTOUCHED)
    return bytearray((block * (nbytes // len(block) + 1))[:nbytes])


def _timed(copy: object) -> Ended:
    assert callable(copy)
    started = time.monotonic()
    try:
        copy()
    except RDMAError as error:
        return Ended(type(error).__name__, str(error), time.monotonic() - started)
    return Ended("done", "", time.monotonic() - started)
