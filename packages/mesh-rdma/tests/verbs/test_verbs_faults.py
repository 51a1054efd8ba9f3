"""Each fault on software RoCE causes a specific error, and affects nothing else."""

from __future__ import annotations

import json
import subprocess

import pytest
from verbs_peer import Link, linked

from mesh_rdma import RDMAPeerDied, RDMAReleased
from mesh_rdma._verbs.messages import Descriptor
from mesh_rdma._verbs.transport import VerbsTransport
from mesh_rdma.spi import Kind

pytestmark = pytest.mark.rdma

MIB = 1 << 20


def test_a_wrong_key_is_refused_and_affects_no_other_request(link: Link) -> None:
    link.peer.do("put", 0, b"x" * 40 * 4096)
    good = link.descriptor
    for place in range(40):
        link.descriptor = forged(good) if place == 20 else good
        link.post(Kind.READ, link.memory.region(place * 4096, 4096), place * 4096)
    errors = list(link.finish(40).items())
    bad = [error for request, error in errors if request.descriptor != good]
    assert [type(error) for error in bad] == [RDMAReleased]
    assert [error for request, error in errors if request.descriptor == good] == [None] * 39
    assert link.memory.content[: 20 * 4096] == b"x" * 20 * 4096
    assert link.memory.content[21 * 4096 : 40 * 4096] == b"x" * 19 * 4096


def test_the_adapter_refuses_out_of_bounds_access(link: Link) -> None:
    link.descriptor = forged(link.descriptor, longer=4096, turned=0)
    with pytest.raises(RDMAReleased):
        link.do(Kind.WRITE, link.memory.region(0, 8192), len(link.memory.content) - 4096)


def test_released_memory_can_no_longer_be_read(link: Link) -> None:
    requests = [link.post(Kind.READ, link.memory.region(0, 8 * MIB)) for _ in range(4)]
    link.peer.do("release", link.descriptor)
    errors = link.finish(len(requests))
    assert {type(error) for error in errors.values()} <= {type(None), RDMAReleased}
    with pytest.raises(RDMAReleased):
        link.do(Kind.READ, link.memory.region(0, 8))
    link.descriptor = link.peer.do("register", True)
    link.do(Kind.READ, link.memory.region(0, 8))


def test_transfers_fail_when_the_peer_is_killed() -> None:
    with linked(VerbsTransport(), MIB) as link:
        # These are more requests than can complete before the peer is dead.
        for _ in range(200):
            link.post(Kind.READ, link.memory.region(0, MIB))
        link.peer.kill()
        errors = set(map(type, link.finish(200).values()))
        assert RDMAPeerDied in errors
        assert errors <= {RDMAPeerDied, type(None)}
        with pytest.raises(RDMAPeerDied):
            link.do(Kind.READ, link.memory.region(0, 8))


def test_no_byte_of_a_read_lands_after_it_was_aborted(link: Link) -> None:
    link.peer.do("put", 0, b"\xee" * 8 * MIB)
    request = link.post(Kind.READ, link.memory.region(0, 8 * MIB))
    while 0xEE not in link.memory.content[: 8 * MIB : 4096]:
        assert not link.channel.poll(0)
    link.channel.abort(request)
    link.memory.content[: 8 * MIB] = bytes(8 * MIB)
    # Data that was still in transit would have arrived before this.
    link.do(Kind.READ, link.memory.region(8 * MIB, MIB), 8 * MIB)
    assert not any(link.memory.content[: 8 * MIB])


def test_no_byte_of_a_write_lands_after_it_was_aborted(link: Link) -> None:
    link.memory.content[: 8 * MIB] = b"\xee" * 8 * MIB
    request = link.post(Kind.WRITE, link.memory.region(0, 8 * MIB))
    while b"\xee" not in link.peer.do("get", 0, 4096):
        assert not link.channel.poll(0)
    link.channel.abort(request)
    link.peer.do("put", 0, bytes(8 * MIB))
    link.do(Kind.WRITE, link.memory.region(8 * MIB, MIB), 8 * MIB)
    assert not any(link.peer.do("get", 0, 8 * MIB))


def test_abort_leaves_other_transfers_alone(link: Link) -> None:
    link.peer.do("put", 0, b"\xee" * 8 * MIB)
    others = [link.post(Kind.READ, link.memory.region(n * MIB, MIB), n * MIB) for n in range(4)]
    aborted = link.post(Kind.READ, link.memory.region(4 * MIB, 4 * MIB), 4 * MIB)
    others += [link.post(Kind.READ, link.memory.region(n * MIB, MIB), n * MIB) for n in range(4)]
    others.append(link.post(Kind.FETCH_ADD, link.memory.region(9 * MIB - 8, 8), 8 * MIB, operand=1))
    link.channel.abort(aborted)
    assert link.finish(len(others)) == dict.fromkeys(others)
    assert link.memory.content[: 4 * MIB] == b"\xee" * 4 * MIB


def test_a_closed_channel_and_a_dead_peer_leave_no_resources(transport: VerbsTransport) -> None:
    before = _resources()
    with linked(transport, MIB) as link:
        link.do(Kind.READ, link.memory.region())
        link.do(Kind.FETCH_ADD, link.memory.region(0, 8), operand=1)
        link.post(Kind.READ, link.memory.region())
        assert _resources() != before
    assert _resources() == before


def forged(descriptor: bytes, longer: int = 0, turned: int = 0xFF) -> bytes:
    """Return a descriptor with other keys, or with a larger length."""
    real = Descriptor.unpack(descriptor)
    keys = tuple((address, key ^ turned) for address, key in real.keys)
    return Descriptor(real.length + longer, real.is_writable, keys).pack()


def _resources() -> dict[str, int]:
    counts = {"qp": 0, "cq": 0, "mr": 0}
    for kind in counts:
        shown = subprocess.run(
            ["rdma", "-j", "resource", "show", kind], stdout=subprocess.PIPE, check=True
        )
        counts[kind] = sum("pid" in one for one in json.loads(shown.stdout))
    return counts
