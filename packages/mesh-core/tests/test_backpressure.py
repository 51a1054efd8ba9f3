"""Mailboxes are bounded: while one is full, threads and the calls of event loops wait."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mesh_core import (
    Actor,
    DeadlineExceeded,
    MailboxFull,
    MeshError,
    ProcDied,
    endpoint,
    this_host,
)

if TYPE_CHECKING:
    from mesh_core import ProcMesh


class Slow(Actor):
    """Serves messages when it is allowed to."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    @endpoint
    def block(self, port: Any) -> None:
        """Block the actor until a value comes back."""
        from mesh_core import Channel

        back, receiver = Channel[Any].open()
        port.send(back)
        receiver.recv().get()

    @endpoint
    def note(self, n: int) -> int:
        self.seen.append(n)
        return n

    @endpoint
    def count(self, data: bytes) -> int:
        return len(data)

    @endpoint
    def read(self) -> list[int]:
        return self.seen


class Pid(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Flood(Actor):
    @endpoint
    def sync(self, slow: Slow, count: int) -> None:
        for n in range(count):
            slow.note.broadcast(n)

    @endpoint
    async def on_loop(self, slow: Slow, count: int) -> int:
        for n in range(count):
            try:
                slow.note.broadcast(n)
            except MailboxFull:
                return n
        return count


def blocked(proc: ProcMesh, mailbox_len_max: int) -> tuple[Any, Any]:
    """Return a blocked actor, and the port that unblocks it."""
    from mesh_core import Channel

    mesh = proc.spawn("slow", Slow, mailbox_len_max=mailbox_len_max)
    port, receiver = Channel[Any].open()
    mesh.block.broadcast(port)
    return mesh, receiver.recv().get()


@pytest.mark.parametrize("verb", ["call_one", "broadcast", "call", "choose", "stream"])
def test_a_blocking_sender_waits_for_capacity_and_loses_no_message(
    proc: ProcMesh, verb: str
) -> None:
    mesh, go = blocked(proc, mailbox_len_max=2)
    sent: list[int] = []

    def flood() -> None:
        for n in range(50):
            getattr(mesh.note, verb)(n)
            sent.append(n)

    thread = threading.Thread(target=flood)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    assert len(sent) <= 2
    go.send(None)
    thread.join(20)
    assert mesh.read.call_one().get() == list(range(50))


async def test_calls_from_an_event_loop_wait_for_capacity(proc: ProcMesh) -> None:
    mesh, go = blocked(proc, mailbox_len_max=4)
    calls = [mesh.note.call_one(n) for n in range(100)]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(calls[0].as_asyncio()), 0.1)
    go.send(None)
    assert await asyncio.gather(*calls) == list(range(100))
    assert await mesh.read.call_one() == list(range(100))


async def test_a_call_waiting_for_capacity_can_be_cancelled_or_time_out(
    proc: ProcMesh,
) -> None:
    mesh, go = blocked(proc, mailbox_len_max=1)
    first, second = mesh.note.call_one(1), mesh.note.call_one(2)
    late = mesh.note.options(timeout=0.1).call_one(3)
    last = mesh.note.call_one(4)
    with pytest.raises(DeadlineExceeded):
        await late
    assert second.cancel()
    go.send(None)
    assert [await first, await last] == [1, 4]
    assert await mesh.read.call_one() == [1, 4]


async def test_calls_waiting_for_capacity_fail_when_the_process_dies() -> None:
    victim = this_host().spawn_procs()
    pid = await victim.spawn("pid", Pid).pid.call_one()
    mesh, _ = blocked(victim, mailbox_len_max=1)
    calls = [mesh.note.call_one(n) for n in range(10)]
    os.kill(pid, signal.SIGKILL)
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in outcomes] == [ProcDied] * 10


async def test_arrays_in_calls_waiting_for_capacity_arrive_intact(proc: ProcMesh) -> None:
    mesh, go = blocked(proc, mailbox_len_max=1)
    calls = [mesh.note.call_one(np.full(100_000, n)) for n in range(8)]
    cancelled = [mesh.note.call_one(np.full(100_000, -1)) for _ in range(3)]
    assert all(one.cancel() for one in cancelled)
    go.send(None)
    for n, got in enumerate(await asyncio.gather(*calls)):
        np.testing.assert_array_equal(got, np.full(100_000, n))


async def test_calls_waiting_for_capacity_are_bounded(proc: ProcMesh) -> None:
    mesh, go = blocked(proc, mailbox_len_max=4)
    long = bytes(1 << 20)
    calls: list[Any] = []
    with pytest.raises(MailboxFull, match="'slow' is full") as raised:
        calls.extend(mesh.count.call_one(long) for _ in range(1000))
    assert isinstance(raised.value, MeshError)
    go.send(None)
    assert set(await asyncio.gather(*calls)) == {len(long)}
    assert await mesh.count.call_one(long) == len(long)


async def test_a_broadcast_from_an_event_loop_does_not_overtake_calls(proc: ProcMesh) -> None:
    mesh, go = blocked(proc, mailbox_len_max=2)
    calls = [mesh.note.call_one(n) for n in range(4)]
    with pytest.raises(MailboxFull):
        mesh.note.broadcast(99)
    go.send(None)
    await asyncio.gather(*calls)
    mesh.note.broadcast(100)
    assert await mesh.read.call_one() == [*range(4), 100]


def broadcast_all(mesh: Any, count: int) -> None:
    for n in range(count):
        mesh.note.broadcast(n)


def test_a_broadcast_reaches_no_rank_if_one_mailbox_is_full(procs: ProcMesh) -> None:
    mesh = procs.spawn("slow", Slow, mailbox_len_max=2)
    mesh.read.call().get()
    from mesh_core import Channel

    port, receiver = Channel[Any].open()
    mesh.slice(gpus=1).block.broadcast(port)
    go = receiver.recv().get()

    async def main() -> None:
        with pytest.raises(MailboxFull):
            broadcast_all(mesh.slice(gpus=1), 10)
        with pytest.raises(MailboxFull):
            mesh.note.broadcast(99)

    asyncio.run(main())
    go.send(None)
    logs = list(mesh.read.call().get().values())
    assert [log for rank, log in enumerate(logs) if rank != 1] == [[], [], []]
    assert 99 not in logs[1]


def test_backpressure_applies_to_calls_from_actors(procs: ProcMesh) -> None:
    mesh, go = blocked(procs.slice(gpus=0), mailbox_len_max=3)
    flood = procs.slice(gpus=1).spawn("flood", Flood)
    accepted = flood.on_loop.call_one(mesh, 100).get()
    assert 1 <= accepted <= 3
    future = flood.sync.call_one(mesh, 100)
    with pytest.raises(TimeoutError):
        future.get(timeout=0.2)
    go.send(None)
    future.get()
    assert flood.sync.call_one(mesh, 0).get() is None
    seen = mesh.read.call_one().get()
    assert seen[:accepted] == list(range(accepted))


def test_a_blocked_sender_does_not_delay_another_receiver(procs: ProcMesh) -> None:
    mesh, go = blocked(procs.slice(gpus=0), mailbox_len_max=1)
    thread = threading.Thread(target=lambda: [mesh.note.broadcast(n) for n in range(5)])
    thread.start()
    other = procs.slice(gpus=1).spawn("slow", Slow)
    assert other.note.call_one(7).get() == 7
    go.send(None)
    thread.join(20)
    assert mesh.read.call_one().get() == list(range(5))


def test_a_mailbox_needs_capacity_for_at_least_one_message(proc: ProcMesh) -> None:
    with pytest.raises(ValueError, match="mailbox_len_max"):
        proc.spawn("slow", Slow, mailbox_len_max=0)


def test_cancelled_calls_release_their_capacity(proc: ProcMesh) -> None:
    mesh, go = blocked(proc, mailbox_len_max=2)
    for _ in range(20):
        assert mesh.note.call_one(1).cancel()
    go.send(None)
    assert mesh.read.call_one().get() == []


def test_backpressure_applies_within_one_process(proc: ProcMesh) -> None:
    from mesh_core import this_proc

    mesh, go = blocked(this_proc(), mailbox_len_max=2)
    thread = threading.Thread(target=lambda: [mesh.note.broadcast(n) for n in range(20)])
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    go.send(None)
    thread.join(20)
    assert mesh.read.call_one().get() == list(range(20))
    mesh.stop().get()
