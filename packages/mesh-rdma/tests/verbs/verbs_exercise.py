"""Two processes that use verbs through `pyverbs`, run by the Python of the system."""

from __future__ import annotations

import random
import struct

from verbs_peer import Link, linked

from mesh_rdma import RDMAReleased
from mesh_rdma._verbs.pyverbs_binding import PyverbsBinding
from mesh_rdma._verbs.transport import VerbsTransport
from mesh_rdma.spi import Kind

MIB = 1 << 20


def move(link: Link) -> None:
    """Write and read at odd offsets, with a single request and with more than fit into a queue."""
    content = random.randbytes(2 * MIB - 9)
    link.memory.content[5 : 5 + len(content)] = content
    link.do(Kind.WRITE, link.memory.region(5, len(content)), 3)
    assert link.peer.do("get", 3, len(content)) == content
    for place in range(600):
        link.post(Kind.READ, link.memory.region(place * 32, 32), 3 + place * 32)
    assert set(link.finish(600).values()) == {None}
    assert link.memory.content[: 600 * 32] == content[: 600 * 32]


def count(link: Link) -> None:
    """Add to a word and swap it."""
    word = link.memory.region(0, 8)
    link.peer.do("put", 0, bytes(8))
    link.do(Kind.FETCH_ADD, word, 0, operand=40)
    link.do(Kind.COMPARE_AND_SWAP, word, 0, operand=42, compare=40)
    assert struct.unpack("<Q", link.memory.content[:8]) == (40,)
    assert struct.unpack("<Q", link.peer.do("get", 0, 8)) == (42,)


def fail(link: Link) -> None:
    """Get refused, abort a transfer, and continue."""
    earlier = link.descriptor
    link.descriptor = link.peer.do("register", True)
    link.peer.do("release", earlier)
    bad = link.request(Kind.READ, link.memory.region(0, 8))
    link.channel.post(type(bad)(bad.kind, bad.local, earlier, 0))
    (error,) = link.finish().values()
    assert isinstance(error, RDMAReleased), error
    aborted = link.post(Kind.WRITE, link.memory.region())
    link.channel.abort(aborted)
    link.do(Kind.READ, link.memory.region())


if __name__ == "__main__":
    with linked(VerbsTransport(PyverbsBinding), 2 * MIB) as both:
        move(both)
        count(both)
        fail(both)
    print("well")
