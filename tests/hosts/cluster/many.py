"""Steps of programs that copy one buffer to many across hosts.

The test passes the handles between the programs, as messages of a mesh would.
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

# These programs have no job, so Mesh learns only from the handles that other hosts connect.
configure(rdma_listen="all")

#: Exceeds the duration of every copy that completes, also on a busy machine.
LIMIT_S = 60.0
_BLOCK_LEN = 65521


@dataclass
class OfferedBuffers:
    """The buffers of the program."""

    offered: list[tuple[bytearray, RDMABuffer]] = field(default_factory=list)


offered_buffers = OfferedBuffers()


def content(nbytes: int) -> bytes:
    """Return bytes in which no two pages are equal."""
    block = bytes(place * place % 251 for place in range(_BLOCK_LEN))
    return (block * (nbytes // _BLOCK_LEN + 1))[:nbytes]


def offer_buffer(nbytes: int, is_full: bool = False) -> bytes:
    """Register memory, zeroed or with `content`, and return the pickled handle."""
    memory = bytearray(content(nbytes) if is_full else nbytes)
    offered_buffers.offered.append((memory, RDMABuffer(memory)))
    return pickle.dumps(offered_buffers.offered[-1][1])


def digest(number: int = -1) -> str:
    """Return a digest of the memory that was registered last, or with this index."""
    return hashlib.sha256(offered_buffers.offered[number][0]).hexdigest()


def spread_to(source: bytes, places: list[bytes]) -> list[tuple[int, str]]:
    """Spread a buffer; return the indices of the targets that were not filled, and the reasons."""
    src, dsts = pickle.loads(source), [pickle.loads(place) for place in places]
    try:
        spread(src, dsts, timeout=LIMIT_S).get()
    except RDMAIncomplete as incomplete:
        return [(place, type(error).__name__) for place, error in incomplete.failures]
    return []


def replicate_near(source: bytes, places: list[bytes]) -> tuple[bytes, int]:
    """Create a copy on each host; return the pickled replicas and their number."""
    src, near = pickle.loads(source), [pickle.loads(place) for place in places]
    replicas = replicate(src, near, timeout=LIMIT_S).get()
    return pickle.dumps(replicas), len(replicas.buffers)


def view_digest(replicas: bytes) -> str:
    """Return a digest of the replica that is visible on this host."""
    return hashlib.sha256(pickle.loads(replicas).view()).hexdigest()


def columns_to_rows(sources: list[bytes], places: list[bytes], side: int) -> float:
    """Reshard a square of bytes from columns to rows, and return the duration in seconds."""
    srcs, dsts = [pickle.loads(one) for one in sources], [pickle.loads(one) for one in places]
    columns = Layout.of((side, side), 1, [len(srcs)], [Shard(1)])
    rows = Layout.of((side, side), 1, [len(dsts)], [Shard(0)])
    schedule = plan_reshard(columns, rows)
    started = time.monotonic()
    schedule.run(srcs, dsts, timeout=LIMIT_S).get()
    return time.monotonic() - started
