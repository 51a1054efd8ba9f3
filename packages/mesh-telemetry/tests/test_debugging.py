"""Code on any host pauses at `breakpoint()` until a debugger resumes it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from debugged_actors import LIMIT_S, AsyncTrainer, Trainer, paused_sessions, wait_until_none_paused
from workers import workers

from mesh_core import (
    DeadlineExceeded,
    MeshError,
    attach_to_workers,
    configured,
    shutdown_context,
    this_host,
)
from mesh_core.testing import wait_until
from mesh_telemetry import DebugError, Telemetry, TelemetryConfig


@pytest.fixture
def telemetry(place: Path) -> Iterator[Telemetry]:
    with Telemetry(TelemetryConfig(directory=str(place))) as started:
        yield started


def test_an_actor_pauses_at_a_breakpoint_and_continues(telemetry: Telemetry) -> None:
    procs = this_host().spawn_procs(name="team")
    trainer: Any = procs.spawn("trainers", Trainer)
    assert not trainer.is_loaded.call_one("pdb").get(LIMIT_S)
    step = trainer.step.call_one(4)
    (session,) = paused_sessions(telemetry)
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
    wait_until_none_paused(telemetry)
    with pytest.raises(DebugError, match="mesh debug list"):
        telemetry.debug(session["id"])
    procs.stop().get(LIMIT_S)


def test_async_endpoints_pause_on_two_hosts(place: Path) -> None:
    with workers(2) as started:
        hosts = attach_to_workers([worker.address for worker in started])
        with Telemetry(TelemetryConfig(directory=str(place))) as telemetry:
            procs = hosts.spawn_procs(name="far")
            plain: Any = procs.spawn("plain", Trainer)
            looped: Any = procs.spawn("looped", AsyncTrainer)
            steps = [looped.step.call(2), plain.step.call(3)]
            found = paused_sessions(telemetry, 4)
            assert {(one["actor"], one["rank"]) for one in found} == {
                ("plain", 0),
                ("plain", 1),
                ("looped", 0),
                ("looped", 1),
            }
            # Event loops are paused, but other actors of their processes are not.
            others: Any = procs.spawn("others", Trainer)
            assert list(others.count.call().get(LIMIT_S).values()) == [0, 0]
            sql = "select distinct host, proc from stacks where function = 'AsyncTrainer.step'"
            assert telemetry.query(sql).table.num_rows == 2
            for session in found:
                with telemetry.debug(session["id"]) as console:
                    assert console.run("p number") == (
                        "2\n" if session["actor"] == "looped" else "3\n"
                    )
            assert [list(step.get(LIMIT_S).values()) for step in steps] == [[21, 21], [30, 31]]
        shutdown_context().get(LIMIT_S)


@pytest.fixture
def team() -> Iterator[Any]:
    procs = this_host().spawn_procs({"gpus": 4}, name="team")
    yield procs.spawn("trainers", Trainer)
    procs.stop().get(LIMIT_S)


@pytest.mark.parametrize("kind", [Trainer, AsyncTrainer])
def test_a_paused_actor_can_be_stopped(telemetry: Telemetry, kind: type) -> None:
    procs = this_host().spawn_procs(name="team")
    trainer: Any = procs.spawn("trainers", kind)
    step = trainer.step.call_one(1)
    paused_sessions(telemetry)
    with configured(stop_grace_s=1), contextlib.suppress(DeadlineExceeded):
        trainer.stop().get(LIMIT_S)
    with pytest.raises(MeshError):
        step.get(LIMIT_S)
    wait_until_none_paused(telemetry)
    other: Any = procs.spawn("others", kind)
    step = other.step.call_one(2)
    (session,) = paused_sessions(telemetry)
    telemetry.debug(session["id"]).close()
    assert step.get(LIMIT_S) in (20, 21)
    procs.stop().get(LIMIT_S)


def test_closing_telemetry_continues_paused_actors(place: Path) -> None:
    procs = this_host().spawn_procs(name="team")
    trainer: Any = procs.spawn("trainers", Trainer)
    before = sys.breakpointhook
    with Telemetry(TelemetryConfig(directory=str(place))) as telemetry:
        assert sys.breakpointhook is not before
        telemetry.watch(procs)
        sql = "select * from procs where mesh = 'team'"
        wait_until(lambda: telemetry.query(sql).table.num_rows, LIMIT_S)
        step = trainer.step.call_one(1)
        paused_sessions(telemetry)
    assert sys.breakpointhook is before
    assert step.get(LIMIT_S) == 10
    procs.stop().get(LIMIT_S)


def test_breakpoints_are_removed_with_their_session(telemetry: Telemetry, team: Any) -> None:
    one = team.slice(gpus=0)
    loop = one.loop.call_one(4)
    (session,) = paused_sessions(telemetry)
    with telemetry.debug(session["id"]) as console:
        source = console.run("ll")
        line = next(line for line in source.splitlines() if "total += number" in line).split()[0]
        assert "Breakpoint" in console.run(f"b {line}")
        console.run("c")
        assert console.run("p number") == "0\n"
        console.run("c")
        assert console.run("p number, total") == "(1, 0)\n"
    assert loop.get(LIMIT_S) == 6
    loop = one.loop.call_one(2)
    (session,) = paused_sessions(telemetry)
    with telemetry.debug(session["id"]) as console:
        console.run("c")
        assert console.is_ended
    assert loop.get(LIMIT_S) == 1


def test_stepping_stops_when_the_endpoint_returns(telemetry: Telemetry, team: Any) -> None:
    one = team.slice(gpus=0)
    step = one.step.call_one(1)
    (session,) = paused_sessions(telemetry)
    with telemetry.debug(session["id"]) as console:
        for _ in range(10):
            if not console.is_ended:
                console.run("n")
        assert console.is_ended
    assert step.get(LIMIT_S) == 10
    assert one.count.call_one().get(LIMIT_S) == 1


def test_a_breakpoint_hook_set_by_the_user_is_kept(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")
    before = sys.breakpointhook
    with Telemetry(TelemetryConfig(directory=str(place))):
        assert sys.breakpointhook is before


PROGRAM = """
from mesh_core import this_host, shutdown_context
from mesh_telemetry import Telemetry, TelemetryConfig
import sys
with Telemetry(TelemetryConfig(directory=sys.argv[1])):
    answer = 41
    breakpoint()
    print("the answer is", answer + 1)
shutdown_context().get(60)
"""


def test_a_breakpoint_of_the_program_itself_uses_its_terminal(place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(place)],
        input="p answer\nc\n",
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert "(Pdb) 41\n" in done.stdout
    assert "the answer is 42" in done.stdout


def test_a_session_shows_the_line_that_it_was_stepped_to(telemetry: Telemetry, team: Any) -> None:
    step = team.slice(gpus=1).step.call_one(1)
    (session,) = paused_sessions(telemetry)
    with telemetry.debug(session["id"]) as console:
        console.run("n")
        (moved,) = paused_sessions(telemetry)
        assert (moved["id"], moved["line"]) == (session["id"], session["line"] + 1)
        assert moved["attached"]
        console.close(is_kept=True)
    wait_until(lambda: not paused_sessions(telemetry)[0]["attached"], LIMIT_S)
    with telemetry.debug(session["id"]) as console:
        assert "return loss" in console.run("n")
    assert step.get(LIMIT_S) == 10
    wait_until_none_paused(telemetry)
