"""The locations of processes, their actors, and the calls that they wait for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from mesh_core import Actor, endpoint, this_host, this_proc
from mesh_core._actors.pending_calls import PendingCall
from mesh_core.spi import current_process
from mesh_core.testing import LocalProcs, local_procs, wait_until

if TYPE_CHECKING:
    from mesh_core.spi import ProcessLocation

__all__ = ["local_procs"]


class Asked(Actor):
    @endpoint
    def location(self) -> ProcessLocation:
        return current_process.location()

    @endpoint
    def slow(self) -> None:
        threading.Event().wait(0.5)


class Starting(Actor):
    """An actor whose `__init__` does not return until the test permits it."""

    has_begun = threading.Event()
    may_end = threading.Event()

    def __init__(self) -> None:
        self.has_begun.set()
        assert self.may_end.wait(30)


class Asking(Actor):
    @endpoint
    def ask(self, asked: Asked) -> None:
        asked.slow.call_one().get()


def test_the_location_of_a_process_has_its_mesh_rank_and_host(local_procs: LocalProcs) -> None:
    procs = local_procs({"gpus": 2}, name="placed")
    found = procs.spawn("asked", Asked).location.call().get().values()
    assert [(one.mesh_name, one.rank, one.host, one.incarnation) for one in found] == [
        ("placed", 0, 0, 0),
        ("placed", 1, 0, 0),
    ]
    assert found[0].mesh == found[1].mesh > 0
    assert (current_process.location().mesh_name, current_process.location().slot) == ("root", 0)
    assert current_process.host_numbers(procs) == current_process.host_numbers(this_host()) == (0,)


def test_actors_can_be_spawned_on_host_agents() -> None:
    asked = current_process.host_agents(this_host()).spawn("asked", Asked)
    assert asked.location.call_one().get() == current_process.location()
    asked.stop().get()


def test_a_snapshot_describes_existing_actors_as_events() -> None:
    asked = this_proc().spawn("there before", Asked)
    asked.location.call_one().get()
    found = [event for event in current_process.snapshot() if event.text == "there before"]
    assert [event.kind for event in found] == ["spawned", "started"]
    assert found[0].actor == found[1].actor
    assert [(event.attributes or {})["class_name"] for event in found] == 2 * ["Asked"]
    asked.stop().get()
    assert not [event for event in current_process.snapshot() if event.text == "there before"]


def test_a_snapshot_includes_an_actor_that_is_still_starting() -> None:
    starting = this_proc().spawn("starting", Starting)
    try:
        assert Starting.has_begun.wait(30)
        found = [event for event in current_process.snapshot() if event.text == "starting"]
        assert [event.kind for event in found] == ["spawned", "started"]
    finally:
        Starting.may_end.set()
        starting.stop().get()


def test_pending_calls_name_the_waiting_actor() -> None:
    asked, asking = this_proc().spawn("asked", Asked), this_proc().spawn("asking", Asking)
    asked.location.call_one().get()
    call = asking.ask.call_one(asked)

    def wait() -> list[PendingCall]:
        return [one for one in current_process.pending_calls() if one.actor_name == "asking"]

    (found,) = wait_until(wait)
    assert (found.running, found.endpoint, found.proc) == ("ask", "slow", 0)
    assert found.waited_s is not None
    assert 0 <= found.waited_s < 10
    call.get()
    assert wait() == []
    asked.stop().get()
    asking.stop().get()


def test_is_stopped_is_true_for_a_stopped_process_mesh() -> None:
    procs = this_host().spawn_procs(name="short")
    assert not current_process.is_stopped(procs)
    procs.stop().get()
    assert current_process.is_stopped(procs)
