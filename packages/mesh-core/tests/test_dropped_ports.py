"""A port in a message that is never served: `recv` ends as if a holder of the port had died."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from mesh_core import (
    Actor,
    CallCancelled,
    Channel,
    Port,
    PortReceiver,
    ProcDied,
    ProcMesh,
    context,
    endpoint,
    this_host,
)

LIMIT_S = 30.0


class Busy(Actor):
    """Serves one call until the test releases it, while others wait in its mailbox."""

    @endpoint
    def work(self, started: Port[int], go_on: Port[Any]) -> None:
        """Send the pid, and wait for a value that determines whether to stop."""
        port, receiver = Channel[bool].open()
        go_on.send(port)
        started.send(os.getpid())
        if receiver.recv().get():
            context().actor_instance.stop()

    @endpoint
    def take(self, *ports: Port[Any]) -> None:
        for port in ports:
            port.send("taken")

    @endpoint
    def own_port(self) -> Port[Any]:
        port, self.receiver = Channel[Any].open()
        return port

    @endpoint
    def first(self) -> Any:
        return self.receiver.recv().get(timeout=LIMIT_S)

    @endpoint
    def hand_to(self, other: Busy, port: Port[Any]) -> None:
        """Forward a port without waiting."""
        other.take.broadcast(port)


@pytest.fixture
def mortal() -> Iterator[ProcMesh]:
    with this_host().spawn_procs({"n": 1}, name="mortal") as procs:
        yield procs


class Work:
    """An actor that is busy until `end`."""

    def __init__(self, busy: Busy) -> None:
        started, is_started = Channel[int].open()
        go_on, gone_on = Channel[Port[bool]].open()
        self.call = busy.work.call_one(started, go_on)
        self.pid = is_started.recv().get(timeout=LIMIT_S)
        self._end = gone_on.recv().get(timeout=LIMIT_S)

    def end(self, *, stops: bool = False) -> None:
        self._end.send(stops)


def expect_death(receiver: PortReceiver[Any]) -> None:
    with pytest.raises(ProcDied):
        receiver.recv().get(timeout=LIMIT_S)
    # The error is raised only once.
    with pytest.raises(TimeoutError):
        receiver.recv().get(timeout=0.1)


def test_a_process_that_dies_with_a_queued_message_is_a_dead_port_holder(
    mortal: ProcMesh,
) -> None:
    busy = mortal.spawn("busy", Busy)
    work = Work(busy)
    port, receiver = Channel[Any].open()
    other_port, other_receiver = Channel[Any].open()
    call = busy.take.call_one(port)
    busy.take.broadcast(other_port)
    os.kill(work.pid, signal.SIGKILL)
    with pytest.raises(ProcDied):
        call.get(timeout=LIMIT_S)
    expect_death(receiver)
    expect_death(other_receiver)
    with pytest.raises(ProcDied):
        work.call.get(timeout=LIMIT_S)


def test_an_actor_that_stops_with_a_queued_message_is_a_dead_port_holder(
    mortal: ProcMesh,
) -> None:
    busy = mortal.spawn("busy", Busy)
    work = Work(busy)
    port, receiver = Channel[Any].open()
    busy.take.broadcast(port)
    work.end(stops=True)
    work.call.get(timeout=LIMIT_S)
    expect_death(receiver)


def test_a_port_sent_to_a_stopped_actor_is_dropped(mortal: ProcMesh) -> None:
    busy, sender = mortal.spawn("busy", Busy), mortal.spawn("sender", Busy)
    busy.take.call_one().get()
    handle = busy.slice(n=0)
    busy.stop().get(timeout=LIMIT_S)
    port, receiver = Channel[Any].open()
    # Another process does not yet know that the actor was stopped.
    sender.hand_to.call_one(handle, port).get(timeout=LIMIT_S)
    expect_death(receiver)


def test_a_port_in_a_call_cancelled_before_it_starts_is_dropped(mortal: ProcMesh) -> None:
    busy = mortal.spawn("busy", Busy)
    work = Work(busy)
    port, receiver = Channel[Any].open()
    call = busy.take.call_one(port)
    call.cancel()
    with pytest.raises(CallCancelled):
        call.get(timeout=LIMIT_S)
    work.end()
    expect_death(receiver)


def test_a_port_sent_through_a_closed_channel_is_dropped() -> None:
    outer_port, outer = Channel[Any].open()
    first_port, first = Channel[Any].open()
    second_port, second = Channel[Any].open()
    outer_port.send(first_port)
    outer.close()
    outer_port.send(second_port)
    expect_death(first)
    expect_death(second)


def test_a_port_sent_by_a_third_process_is_tracked(mortal: ProcMesh) -> None:
    with this_host().spawn_procs({"n": 1}, name="third") as third:
        busy, sender = mortal.spawn("busy", Busy), third.spawn("sender", Busy)
        work = Work(busy)
        port, receiver = Channel[Any].open()
        sender.hand_to.call_one(busy, port).get(timeout=LIMIT_S)
        os.kill(work.pid, signal.SIGKILL)
        expect_death(receiver)
        with pytest.raises(ProcDied):
            work.call.get(timeout=LIMIT_S)


def test_a_delivered_port_is_not_treated_as_dropped(mortal: ProcMesh) -> None:
    busy = mortal.spawn("busy", Busy)
    port, receiver = Channel[Any].open()
    busy.take.call_one(port, port).get(timeout=LIMIT_S)
    assert [receiver.recv().get(timeout=LIMIT_S) for _ in range(2)] == ["taken", "taken"]
    with pytest.raises(TimeoutError):
        receiver.recv().get(timeout=0.1)
