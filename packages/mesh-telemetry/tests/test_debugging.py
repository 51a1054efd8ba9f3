"""Code stands at `breakpoint()`, on any host, until somebody has looked at it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from debugged_actors import LIMIT_S, AsyncTrainer, Trainer, none_standing, standing
from workers import workers

from mesh_core import attach_to_workers, shutdown_context, this_host
from mesh_telemetry import DebugError, Telemetry, TelemetryConfig


@pytest.fixture
def telemetry(place: Path) -> Iterator[Telemetry]:
    with Telemetry(TelemetryConfig(directory=str(place))) as started:
        yield started


def test_an_actor_stands_at_a_breakpoint_and_goes_on(telemetry: Telemetry) -> None:
    procs = this_host().spawn_procs(name="team")
    trainer: Any = procs.spawn("trainers", Trainer)
    assert not trainer.is_loaded.call_one("pdb").get(LIMIT_S)
    step = trainer.step.call_one(4)
    (session,) = standing(telemetry)
    assert session["function"] == "Trainer.step"
    assert session["actor"] == "trainers"
    assert session["kind"] == "breakpoint"
    assert not session["attached"]
    with telemetry.debug(session["id"]) as console:
        assert "breakpoint()" in console.run()
        assert console.run("p loss") == "40\n"
        assert console.run("!loss = 7") == ""
        assert "self.steps" in console.run("n")
        assert console.run("w").count("debugged_actors.py") == 1
        with pytest.raises(DebugError, match="in use: process"):
            telemetry.debug(session["id"])
        console.run("c")
        assert console.is_ended
    assert step.get(LIMIT_S) == 7
    none_standing(telemetry)
    with pytest.raises(DebugError, match="mesh debug list"):
        telemetry.debug(session["id"])
    procs.stop().get(LIMIT_S)


def test_async_endpoints_stand_too_on_two_hosts(place: Path) -> None:
    with workers(2) as started:
        hosts = attach_to_workers([worker.address for worker in started])
        with Telemetry(TelemetryConfig(directory=str(place))) as telemetry:
            procs = hosts.spawn_procs(name="far")
            plain: Any = procs.spawn("plain", Trainer)
            looped: Any = procs.spawn("looped", AsyncTrainer)
            steps = [looped.step.call(2), plain.step.call(3)]
            found = standing(telemetry, 4)
            assert {(one["actor"], one["rank"]) for one in found} == {
                ("plain", 0),
                ("plain", 1),
                ("looped", 0),
                ("looped", 1),
            }
            # Its loop stands still, but its process does not.
            assert plain.slice(hosts=0) is not None
            for session in found:
                with telemetry.debug(session["id"]) as console:
                    assert console.run("p number") == ("2\n" if session["actor"] == "looped" else "3\n")
            assert [list(step.get(LIMIT_S).values()) for step in steps] == [[21, 21], [30, 31]]
        shutdown_context().get(LIMIT_S)
