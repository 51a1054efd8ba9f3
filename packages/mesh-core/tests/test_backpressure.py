"""Mailboxes are bounded: a sender waits while one is full, or gets an error if it must not wait."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mesh_core import Actor, MailboxFull, MeshError, endpoint

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
    def read(self) -> list[int]:
        return self.seen


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
    """Return an actor that serves nothing, and the port that unblocks it."""
    from mesh_core import Channel

    mesh = proc.spawn("slow", Slow, mailbox_len_max=mailbox_len_max)
    port, receiver = Channel[Any].open()
    mesh.block.broadcast(port)
    return mesh, receiver.recv().get()


@pytest.mark.parametrize("verb", ["call_one", "broadcast", "call", "choose", "stream"])
def test_a_blocking_sender_waits_for_room_and_nothing_is_lost(proc: ProcMesh, verb: str) -> None:
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


def test_an_event_loop_is_told_and_may_try_again(proc: ProcMesh) -> None:
    mesh, go = blocked(proc, mailbox_len_max=4)

    async def main() -> None:
        accepted: list[Any] = []
        with pytest.raises(MailboxFull) as raised:
            accepted.extend(mesh.note.call_one(n) for n in range(100))
        assert isinstance(raised.value, MeshError)
        assert "4" in str(raised.value)
        assert "slow" in str(raised.value)
        assert len(accepted) <= 4
        go.send(None)
        assert await asyncio.gather(*accepted) == list(range(len(accepted)))
        assert await mesh.note.call_one(1000) == 1000
        assert await mesh.read.call_one() == [*range(len(accepted)), 1000]

    asyncio.run(main())


def broadcast_all(mesh: Any, count: int) -> None:
    for n in range(count):
        mesh.note.broadcast(n)


def test_a_mesh_call_that_one_rank_has_no_room_for_reaches_none(procs: ProcMesh) -> None:
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


def test_actors_are_held_back_like_programs(procs: ProcMesh) -> None:
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


def test_one_sender_that_waits_does_not_hold_up_another_receiver(procs: ProcMesh) -> None:
    mesh, go = blocked(procs.slice(gpus=0), mailbox_len_max=1)
    thread = threading.Thread(target=lambda: [mesh.note.broadcast(n) for n in range(5)])
    thread.start()
    other = procs.slice(gpus=1).spawn("slow", Slow)
    assert other.note.call_one(7).get() == 7
    go.send(None)
    thread.join(20)
    assert mesh.read.call_one().get() == list(range(5))


def test_a_mailbox_needs_room_for_one(proc: ProcMesh) -> None:
    with pytest.raises(ValueError, match="mailbox_len_max"):
        proc.spawn("slow", Slow, mailbox_len_max=0)


def test_cancelled_calls_give_their_room_back(proc: ProcMesh) -> None:
    mesh, go = blocked(proc, mailbox_len_max=2)
    for _ in range(20):
        assert mesh.note.call_one(1).cancel()
    go.send(None)
    assert mesh.read.call_one().get() == []


def test_actors_of_the_same_process_are_held_back_too(proc: ProcMesh) -> None:
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
