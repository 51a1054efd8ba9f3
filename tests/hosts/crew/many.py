"""Steps of programs that have one buffer copied to many, across hosts.

The test carries the handles from one to the other, as messages of a mesh do.
"""

from __future__ import annotations

import hashlib
import pickle
import time
from dataclasses import dataclass, field

from mesh_rdma import (
    Layout,
    RDMABuffer,
    RDMAIncomplete,
    Shard,
    configure,
    plan_reshard,
    replicate,
    spread,
)

# These programs are no job, so only the handles say that other hosts are to connect.
configure(rdma_listen="all")

#: Longer than any copy takes that does come to its end, also on a busy machine.
LIMIT_S = 60.0
_BLOCK_LEN = 65521


@dataclass
class Rooms:
    """What the program has."""

    offered: list[tuple[bytearray, RDMABuffer]] = field(default_factory=list)


rooms = Rooms()


def content(nbytes: int) -> bytes:
    """Gives bytes in which no page is like another."""
    block = bytes(place * place % 251 for place in range(_BLOCK_LEN))
    return (block * (nbytes // _BLOCK_LEN + 1))[:nbytes]


def offer_room(nbytes: int, is_full: bool = False) -> bytes:
    """Offers memory, empty or with contents; returns the handle."""
    memory = bytearray(content(nbytes) if is_full else nbytes)
    rooms.offered.append((memory, RDMABuffer(memory)))
    return pickle.dumps(rooms.offered[-1][1])


def digest(number: int = -1) -> str:
    """Says what is in the memory that was offered last, or as this number."""
    return hashlib.sha256(rooms.offered[number][0]).hexdigest()


def spread_to(source: bytes, places: list[bytes]) -> list[tuple[int, str]]:
    """Spreads a buffer; returns the places that were not filled, and why."""
    src, dsts = pickle.loads(source), [pickle.loads(place) for place in places]
    try:
        spread(src, dsts, timeout=LIMIT_S).get()
    except RDMAIncomplete as incomplete:
        return [(place, type(error).__name__) for place, error in incomplete.failures]
    return []


def replicate_near(source: bytes, places: list[bytes]) -> tuple[bytes, int]:
    """Makes a copy on each host; returns the replicas, and how many there are."""
    src, near = pickle.loads(source), [pickle.loads(place) for place in places]
    replicas = replicate(src, near, timeout=LIMIT_S).get()
    return pickle.dumps(replicas), len(replicas.buffers)


def view_digest(replicas: bytes) -> str:
    """Says what is in view on this host."""
    return hashlib.sha256(pickle.loads(replicas).view()).hexdigest()


def columns_to_rows(sources: list[bytes], places: list[bytes], side: int) -> float:
    """Moves a square of bytes that lies in columns to rows; returns how long it took."""
    srcs, dsts = [pickle.loads(one) for one in sources], [pickle.loads(one) for one in places]
    columns = Layout.of((side, side), 1, [len(srcs)], [Shard(1)])
    rows = Layout.of((side, side), 1, [len(dsts)], [Shard(0)])
    schedule = plan_reshard(columns, rows)
    started = time.monotonic()
    schedule.run(srcs, dsts, timeout=LIMIT_S).get()
    return time.monotonic() - started
