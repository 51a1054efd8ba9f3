"""Bytes arrive at the intended positions through software RoCE."""

from __future__ import annotations

import ctypes
import mmap
import random
import struct
import threading
from pathlib import Path

import pytest
from verbs_peer import Link, Memory, linked

from mesh_rdma import RDMAAlignmentError, RDMABoundsError, RDMAReadOnlyError
from mesh_rdma._verbs.transport import PORTS_VARIABLE, VerbsTransport
from mesh_rdma.spi import Kind, Region

pytestmark = pytest.mark.rdma

#: The number of bytes, and their offsets in local and remote memory.
RANGES = [
    (1, 3, 8),
    (7, 4095, 4097),
    (4096, 1, 0),
    (65537, 12345, 777),
    ((1 << 20) + 3, 5, 1 << 20),
    (8 << 20, 11, 1023),
]


def test_reads_and_writes_move_only_the_requested_bytes(link: Link) -> None:
    for nbytes, here, there in RANGES:
        content = random.randbytes(nbytes)
        link.peer.do("put", there, content)
        link.memory.content[here - 1 : here + nbytes + 1] = bytes([7]) * (nbytes + 2)
        link.do(Kind.READ, link.memory.region(here, nbytes), there)
        assert link.memory.content[here : here + nbytes] == content
        assert link.memory.content[here - 1] == link.memory.content[here + nbytes] == 7

        content = random.randbytes(nbytes)
        link.peer.do("put", there + nbytes, b"\7")
        link.memory.content[here : here + nbytes] = content
        link.do(Kind.WRITE, link.memory.region(here, nbytes), there)
        assert link.peer.do("get", there, nbytes + 1) == content + b"\7"


def test_a_transfer_of_zero_bytes_succeeds(link: Link) -> None:
    link.do(Kind.READ, link.memory.empty(5), 9 << 20)
    link.do(Kind.WRITE, link.memory.empty(5), 0)


def test_batches_deeper_than_the_queue_complete(link: Link) -> None:
    content = random.randbytes(1200 * 64)
    link.peer.do("put", 0, content)
    for place in range(1200):
        link.post(Kind.READ, link.memory.region(place * 64, 64), place * 64)
    assert set(link.finish(1200).values()) == {None}
    assert link.memory.content[: len(content)] == content


def test_additions_by_four_threads_are_all_counted(link: Link) -> None:
    adds, errors = 30, []

    def add(rail: int) -> None:
        for turn in range(adds):
            word = link.memory.region((rail * adds + turn) * 8, 8)
            link.post(Kind.FETCH_ADD, word, 64, operand=1)

    threads = [threading.Thread(target=add, args=(rail,)) for rail in range(4)]
    for thread in threads:
        thread.start()
    errors = list(link.finish(4 * adds).values())
    for thread in threads:
        thread.join()
    assert set(errors) == {None}
    assert struct.unpack("<Q", link.peer.do("get", 64, 8)) == (4 * adds,)
    found = struct.unpack(f"<{4 * adds}Q", link.memory.content[: 4 * adds * 8])
    assert sorted(found) == list(range(4 * adds))


def test_a_word_is_swapped_only_if_the_comparison_holds(link: Link) -> None:
    word = link.memory.region(0, 8)
    link.do(Kind.COMPARE_AND_SWAP, word, 8, operand=(1 << 64) - 1, compare=0)
    assert link.peer.do("get", 8, 8) == b"\xff" * 8
    link.do(Kind.COMPARE_AND_SWAP, word, 8, operand=5, compare=4)
    assert link.memory.content[:8] == link.peer.do("get", 8, 8) == b"\xff" * 8
    link.do(Kind.FETCH_ADD, word, 8, operand=-2)
    assert link.peer.do("get", 8, 8) == b"\xfd" + b"\xff" * 7


def test_invalid_requests_are_refused_before_they_start(link: Link) -> None:
    size = 9 << 20
    with pytest.raises(RDMABoundsError, match=f"are outside of a buffer of {size}"):
        link.post(Kind.READ, link.memory.region(0, 8), size - 7)
    with pytest.raises(RDMAAlignmentError):
        link.post(Kind.FETCH_ADD, link.memory.region(0, 8), 4, operand=1)
    with pytest.raises(RDMAReadOnlyError):
        link.post(Kind.READ, Region(link.memory.address, 8, False))
    link.descriptor = link.peer.do("register", False)
    with pytest.raises(RDMAReadOnlyError):
        link.post(Kind.WRITE, link.memory.region(0, 8))
    link.peer.do("put", 0, b"readable")
    link.do(Kind.READ, link.memory.region(0, 8))
    assert link.memory.content[:8] == b"readable"


def test_unregistered_local_memory_can_be_used(link: Link) -> None:
    other = Memory(3 * mmap.PAGESIZE)
    other.content[:] = random.randbytes(len(other.content))
    link.do(Kind.WRITE, other.region(5, 8000), 99)
    assert link.peer.do("get", 99, 8000) == other.content[5:8005]
    link.do(Kind.READ, other.region(1, 8000), 99)
    assert other.content[1:8001] == link.peer.do("get", 99, 8000)


def test_read_only_local_memory_can_be_sent(link: Link) -> None:
    constant = b"a constant of this process" * 400
    address = ctypes.cast(constant, ctypes.c_void_p).value or 0
    link.do(Kind.WRITE, Region(address, len(constant), False), 3)
    assert link.peer.do("get", 3, len(constant)) == constant


def test_large_transfers_use_all_devices(link: Link) -> None:
    before = _packets_sent()
    link.do(Kind.WRITE, link.memory.region(0, 8 << 20))
    after = _packets_sent()
    # At 4096 bytes per packet, each port has sent about half of the data.
    assert all(after[name] - before[name] > 600 for name in before), (before, after)
    assert len(before) == 2


def test_only_the_configured_ports_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PORTS_VARIABLE, "rxe1:1")
    with linked(VerbsTransport(), 1 << 20) as link:
        before = _packets_sent()
        for _ in range(4):
            link.do(Kind.WRITE, link.memory.region())
        after = _packets_sent()
    sent = {name: after[name] - before[name] for name in after}
    # Queue pairs of previous tests may still retransmit to killed peers. A transfer over both ports
    # would have sent half of its packets from each of them.
    assert sent["rxe0"] < sent["rxe1"] / 4


def _packets_sent() -> dict[str, int]:
    devices = Path("/sys/class/infiniband").iterdir()
    return {
        device.name: int((device / "ports/1/hw_counters/sent_pkts").read_text())
        for device in devices
    }
