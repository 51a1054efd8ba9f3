"""Copies between buffers of other processes, on request of this process."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from math import prod

import numpy as np
import pytest
from buffer_owners import BufferActor, BufferOwner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from killable_processes import KillableProcess, pattern
from test_layouts import ITEM, _cut, layouts

from mesh_core import CallCancelled, this_host
from mesh_core.testing import wait_until
from mesh_rdma import (
    Layout,
    RDMABoundsError,
    RDMABuffer,
    RDMAIncomplete,
    RDMAPeerDied,
    RDMAReadOnlyError,
    RDMAReleased,
    RDMATimeout,
    RDMATransportError,
    Shard,
    allocate,
    collect,
    plan_reshard,
)

TRANSPORTS = ["arena", "attach", "unix", "tcp"]
LONG = 64 << 20
MEASURED = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def buffer_owners() -> Iterator[list[BufferOwner]]:
    procs = this_host().spawn_procs({"procs": 3})
    actors = procs.spawn("actors", BufferActor)
    yield [BufferOwner(actors.slice(procs=rank)) for rank in range(3)]
    procs.stop().get()


@pytest.fixture(autouse=True)
def clear(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "buffer_owners" in request.fixturenames:
        for buffer_owner in request.getfixturevalue("buffer_owners"):
            buffer_owner.clear()
            buffer_owner.select_transport(None)


@pytest.fixture
def killable() -> Iterator[KillableProcess]:
    process = KillableProcess()
    yield process
    process.stop()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_bytes_are_copied_between_two_processes(
    buffer_owners: list[BufferOwner], transport: str
) -> None:
    buffer_owners[1].select_transport(transport)
    src = buffer_owners[0].register(pattern(1, 3 << 20), "arena")
    dst = buffer_owners[1].register(3 << 20)
    dst.copy_from(src).get()
    assert buffer_owners[1].has(1)
    dst.copy_from(src, offset=5, src_offset=7, length=11).get()
    assert (
        buffer_owners[1].bytes_of()[:20] == pattern(1, 5) + pattern(1, 18)[7:] + pattern(1, 20)[16:]
    )


def test_either_side_of_a_copy_may_be_local(buffer_owners: list[BufferOwner]) -> None:
    ours, other = bytearray(4096), bytearray(pattern(2, 4096))
    here, there = RDMABuffer(ours), buffer_owners[0].register(pattern(3, 4096))
    here.copy_from(there).get()
    assert ours == pattern(3, 4096)
    there.copy_from(RDMABuffer(other)).get()
    assert buffer_owners[0].has(2)
    here.copy_from(RDMABuffer(other)).get()
    assert ours == other


async def test_a_copy_can_be_awaited(buffer_owners: list[BufferOwner]) -> None:
    src, dst = buffer_owners[0].register(pattern(1, LONG)), buffer_owners[1].register(LONG)
    await dst.copy_from(src)
    assert buffer_owners[1].has(1)


def test_out_of_bounds_ranges_and_read_only_memory_are_refused_at_the_call(
    buffer_owners: list[BufferOwner],
) -> None:
    src, dst = buffer_owners[0].register(100), buffer_owners[1].register(50)
    with pytest.raises(RDMABoundsError):
        dst.copy_from(src)
    with pytest.raises(RDMABoundsError):
        dst.copy_from(src, src_offset=90, length=20)
    with pytest.raises(RDMAReadOnlyError):
        RDMABuffer(b"read only").copy_from(src[:9])


def test_a_copy_with_a_dropped_buffer_fails(buffer_owners: list[BufferOwner]) -> None:
    src, dst = buffer_owners[0].register(100), buffer_owners[1].register(100)
    src.drop().get()
    with pytest.raises(RDMAReleased):
        dst.copy_from(src).get()
    again = buffer_owners[0].register(100)
    dst.drop().get()
    with pytest.raises(RDMAReleased):
        dst.copy_from(again).get()


@pytest.mark.parametrize("whose", ["source", "destination"])
def test_a_copy_with_a_dead_owner_fails(
    buffer_owners: list[BufferOwner], killable: KillableProcess, whose: str
) -> None:
    stays, goes = buffer_owners[0].register(LONG), killable.register(LONG)
    src, dst = (goes, stays) if whose == "source" else (stays, goes)
    dst.copy_from(src).get()
    killable.freeze()
    copies = [dst.copy_from(src) for _ in range(8)]
    killable.kill()
    # Copies that started before the death may have completed.
    errors = [copy.exception(20) for copy in copies]
    errors.append(wait_until(lambda: dst.copy_from(src).exception(20)))
    assert all(error is None or isinstance(error, RDMAPeerDied) for error in errors)
    assert f"process {killable.pid} " in str(errors[-1])


def test_a_copy_from_a_stuck_owner_times_out(
    buffer_owners: list[BufferOwner], killable: KillableProcess
) -> None:
    buffer_owners[0].select_transport("tcp")
    src, dst = killable.register(LONG), buffer_owners[0].register(LONG)
    dst.copy_from(src).get()
    killable.freeze()
    with pytest.raises(RDMATimeout):
        dst.copy_from(src, timeout=0.2).get()
    # The live process was never blocked.
    dst.copy_from(buffer_owners[1].register(pattern(1, LONG))).get()
    assert buffer_owners[0].has(1)


def test_nothing_is_written_after_a_copy_is_cancelled(buffer_owners: list[BufferOwner]) -> None:
    src, dst = buffer_owners[0].register(pattern(1, LONG)), buffer_owners[1].register(LONG)
    mark = bytearray(pattern(2, LONG))
    for _ in range(5):
        copy = dst.copy_from(src)
        is_given_up = copy.cancel()
        dst.write_from(mark).get()
        assert buffer_owners[1].has(2)
        if is_given_up:
            with pytest.raises(CallCancelled):
                copy.get()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_nothing_is_written_to_a_dropped_buffer(
    buffer_owners: list[BufferOwner], transport: str
) -> None:
    buffer_owners[1].select_transport(transport)
    src, dst = buffer_owners[0].register(pattern(1, LONG), "arena"), buffer_owners[1].register(LONG)
    copies = [dst.copy_from(src) for _ in range(3)]
    buffer_owners[1].drop_and_mark(2)
    errors = [copy.exception(20) for copy in copies]
    assert all(error is None or isinstance(error, RDMAReleased) for error in errors)
    assert buffer_owners[1].has(2)


def test_malformed_requests_are_refused(buffer_owners: list[BufferOwner]) -> None:
    ours, theirs = buffer_owners[0].register(10), buffer_owners[1].register(10)
    begin = struct.Struct("<c16scd")

    def send(kind: bytes, payload: bytes) -> bytes:
        request = begin.pack(b"b", os.urandom(16), kind, 1.0) + payload
        return ours._handle.exchange("operation", request, 5.0)

    assert b"malformed pulls" in send(b"p", b"\x01\x00")
    assert b"unknown kind" in send(b"?", b"")
    encoded = theirs._handle.encode_borrowed()
    payload = struct.pack("<HHI", 0, 1, 0) + struct.pack("<H", len(encoded)) + encoded
    assert b"the destination is a buffer of another process" in send(b"p", payload)
    with pytest.raises(RDMATransportError):
        ours._handle.exchange("operation", b"", 5.0)
    assert ours.size() == 10


@MEASURED
@given(pair=layouts(), transports=st.lists(st.sampled_from(TRANSPORTS), min_size=2, max_size=2))
def test_each_destination_is_filled_by_every_transport(
    buffer_owners: list[BufferOwner], pair: tuple[Layout, Layout], transports: list[str]
) -> None:
    src, dst = pair
    whole = np.arange(prod(src.shape), dtype=ITEM).reshape(src.shape)
    kept = []
    for part in _cut(src, whole):
        memory = allocate(len(part)) if part else None
        if memory is not None:
            memory[:] = part
        kept.append(memory)
    srcs = [None if memory is None else RDMABuffer(memory) for memory in kept]
    wanted = _cut(dst, whole)
    dsts, places = [], []
    held = [0, 0]
    for place, part in enumerate(wanted):
        at = place % 2
        dsts.append(buffer_owners[at].register(len(part)) if part else None)
        places.append((at, held[at]))
        held[at] += bool(part)
    for at, transport in enumerate(transports):
        buffer_owners[at].select_transport(transport)
    schedule = plan_reshard(src, dst)
    schedule.run(srcs, dsts).get()
    for part, (at, number) in zip(wanted, places, strict=True):
        assert not part or buffer_owners[at].bytes_of(number) == part
    for buffer_owner in buffer_owners:
        buffer_owner.clear()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_short_rows_are_split_correctly_at_piece_boundaries(
    buffer_owners: list[BufferOwner], transport: str
) -> None:
    buffer_owners[2].select_transport(transport)
    whole = np.arange(1500 * 2003, dtype=ITEM).reshape(1500, 2003)
    rows = Layout.of(whole.shape, 4, [2], [Shard(0)])
    columns = Layout.of(whole.shape, 4, [3], [Shard(1)])
    srcs = [
        buffer_owners[at].register(bytes(part), "arena")
        for at, part in enumerate(_cut(rows, whole))
    ]
    wanted = _cut(columns, whole)
    dsts = [buffer_owners[2].register(len(part)) for part in wanted]
    plan_reshard(rows, columns).run(srcs, dsts).get()
    assert [buffer_owners[2].bytes_of(number) for number in range(3)] == wanted


def test_a_schedule_names_missing_or_mismatched_buffers() -> None:
    layout = Layout.of((8,), 4, [2], [Shard(0)])
    schedule = plan_reshard(layout, layout)
    buffer = RDMABuffer(bytearray(16))
    with pytest.raises(RDMABoundsError, match="1 sources, but the schedule is for 2"):
        schedule.run([buffer], [buffer, buffer])
    with pytest.raises(RDMABoundsError, match="source 1 has 0 bytes"):
        schedule.run([buffer, None], [buffer, buffer])
    with pytest.raises(RDMABoundsError, match="destination 0 has 8 bytes"):
        schedule.run([buffer, buffer], [buffer[:8], buffer])


def test_live_destinations_are_filled_despite_a_dead_one(
    buffer_owners: list[BufferOwner], killable: KillableProcess
) -> None:
    layout = Layout.of((3, 1000), 4, [3], [Shard(0)])
    srcs = [buffer_owners[0].register(pattern(1, 4000)) for _ in range(3)]
    dsts = [
        buffer_owners[1].register(4000),
        killable.register(4000),
        buffer_owners[2].register(4000),
    ]
    killable.kill()
    with pytest.raises(RDMAIncomplete) as caught:
        plan_reshard(layout, layout).run(srcs, dsts).get(20)
    ((place, error),) = caught.value.failures
    assert place == 1
    assert isinstance(error, RDMAPeerDied)
    assert buffer_owners[1].has(1)
    assert buffer_owners[2].has(1)


def test_several_buffers_are_collected_into_one(
    buffer_owners: list[BufferOwner], killable: KillableProcess
) -> None:
    srcs = [buffer_owners[0].register(pattern(1, 100)), buffer_owners[1].register(pattern(2, 200))]
    dst = buffer_owners[2].register(400)
    collect(srcs, dst).get()
    assert buffer_owners[2].bytes_of() == pattern(1, 100) + pattern(2, 200) + bytes(100)
    lost = killable.register(50)
    killable.kill()
    with pytest.raises(RDMAIncomplete) as caught:
        collect([*srcs, lost], dst, offsets=[300, 0, 200]).get(20)
    assert [place for place, _ in caught.value.failures] == [2]
    assert buffer_owners[2].bytes_of()[300:] == pattern(1, 100)
    with pytest.raises(RDMABoundsError):
        collect(srcs, dst, offsets=[300, 350])
