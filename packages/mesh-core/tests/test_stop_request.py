"""A mesh is stopped on request of a process that does not own it."""

from __future__ import annotations

import threading

import pytest

from mesh_core import Actor, DeadlineExceeded, MeshStopped, endpoint, this_host
from mesh_core.spi import current_process, stop_owned

LIMIT_S = 30.0
WHY = "the night shift is over"


class Clerk(Actor):
    @endpoint
    def write(self) -> int:
        return 1

    @endpoint
    def wait(self) -> None:
        threading.Event().wait()


class Chief(Actor):
    @endpoint
    def hire(self) -> int:
        self.clerks = this_host().spawn_procs(name="desk").spawn("clerks", Clerk)
        return self.clerks.write.call_one().get()

    @endpoint
    def order(self) -> str:
        try:
            return str(self.clerks.write.call_one().get(LIMIT_S))
        except MeshStopped as error:
            return error.reason or ""

    @endpoint
    def dismiss(self, name: str, why: str) -> str:
        return stop_owned(number_of(name), why)


def number_of(name: str) -> int:
    """Return the number of a mesh that this process owns."""
    return next(
        one.actor
        for one in current_process.snapshot()
        if one.kind == "spawned" and one.text == name
    )


def test_callers_get_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESH_STOP_GRACE_S", "1")
    with this_host().spawn_procs({"n": 2}, name="office") as procs:
        clerks = procs.spawn("clerks", Clerk)
        clerks.write.call().get(LIMIT_S)
        waiting = clerks.wait.call()
        assert stop_owned(number_of("clerks"), WHY) == "clerks"
        for call in (waiting.get, lambda limit: clerks.write.call().get(limit)):
            with pytest.raises(MeshStopped, match=WHY):
                call(LIMIT_S)
        # The owner is notified as of any other stop.
        with pytest.raises(DeadlineExceeded, match="wait"):
            clerks.stop().get(LIMIT_S)


def test_the_processes_stop_and_refuse_new_actors() -> None:
    procs = this_host().spawn_procs(name="office")
    clerks = procs.spawn("clerks", Clerk)
    clerks.write.call_one().get(LIMIT_S)
    stop_owned(number_of("office"), WHY)
    with pytest.raises(MeshStopped, match=WHY):
        procs.spawn("more", Clerk)
    with pytest.raises(MeshStopped, match=WHY):
        clerks.write.call_one().get(LIMIT_S)
    procs.stop().get(LIMIT_S)


def test_a_mesh_owned_by_an_actor_is_stopped_in_its_process() -> None:
    with this_host().spawn_procs(name="office") as procs:
        chief = procs.spawn("chief", Chief)
        assert chief.hire.call_one().get(LIMIT_S) == 1
        assert chief.dismiss.call_one("clerks", WHY).get(LIMIT_S) == "clerks"
        assert chief.order.call_one().get(LIMIT_S) == WHY


def test_a_mesh_that_this_process_does_not_own_is_refused() -> None:
    with pytest.raises(LookupError, match="owns no mesh 123456789"):
        stop_owned(123456789, WHY)
