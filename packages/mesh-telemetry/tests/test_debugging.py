"""Code stands at `breakpoint()`, on any host, until somebody has looked at it."""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from debugged_actors import LIMIT_S, AsyncTrainer, Trainer, none_standing, standing
from debugging_command import MeshDebug
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
                    assert console.run("p number") == (
                        "2\n" if session["actor"] == "looped" else "3\n"
                    )
            assert [list(step.get(LIMIT_S).values()) for step in steps] == [[21, 21], [30, 31]]
        shutdown_context().get(LIMIT_S)


@pytest.fixture
def debug(
    telemetry: Telemetry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MeshDebug]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with telemetry.serve():
        yield MeshDebug()


@pytest.fixture
def team() -> Iterator[Any]:
    procs = this_host().spawn_procs({"gpus": 4}, name="team")
    yield procs.spawn("trainers", Trainer)
    procs.stop().get(LIMIT_S)


def test_the_command_lists_attaches_and_lets_go(
    telemetry: Telemetry, debug: MeshDebug, team: Any
) -> None:
    one = team.slice(gpus=2)
    step = one.step.call_one(4)
    (session,) = standing(telemetry)
    listed = debug.run("list")
    assert session["id"] in listed.stdout
    assert "Trainer.step" in listed.stdout
    done = debug.run("attach", typed="p loss\np rank_of_nobody\n!loss += 1\nc\n")
    assert "(Pdb) 40\n" in done.stdout
    assert "NameError" in done.stdout
    assert "the code goes on" in done.stdout
    assert step.get(LIMIT_S) == 41
    step = one.step.call_one(5)
    (session,) = standing(telemetry)
    kept = debug.run("attach", "--keep", session["id"], typed="p loss\n")
    assert "(Pdb) 50" in kept.stdout
    (session,) = standing(telemetry)
    assert not session["attached"]
    gone = debug.run("attach", "nowhere")
    assert gone.returncode == 1
    assert "mesh debug list" in gone.stderr
    assert "trainers 2: goes on" in debug.run("continue", session["id"]).stdout
    assert step.get(LIMIT_S) == 50
    none = debug.run("attach")
    assert (none.returncode, none.stderr.count("\n")) == (1, 1)


def test_a_command_is_cast_to_many(telemetry: Telemetry, debug: MeshDebug, team: Any) -> None:
    steps = team.step.call(1)
    found = standing(telemetry, 4)
    same = debug.run("cast", "p number")
    assert same.stdout == "trainers 0, trainers 1, trainers 2, trainers 3:\n1\n", same.stderr
    some = debug.run("cast", "p loss", "--mesh", "trainers", "--ranks", "0,2-3")
    assert some.stdout == "trainers 0:\n10\ntrainers 2:\n12\ntrainers 3:\n13\n"
    with telemetry.debug(found[1]["id"]):
        busy = debug.run("cast", "p number")
        assert busy.returncode == 1
        assert "process" in busy.stdout
    assert debug.run("continue").returncode == 1
    assert debug.run("continue", "--all").stdout.count("goes on") == 3
    assert list(steps.get(LIMIT_S).values()) == [10, 11, 12, 13]


def test_a_client_that_is_killed_lets_the_actor_go(
    telemetry: Telemetry, debug: MeshDebug, team: Any
) -> None:
    step = team.slice(gpus=0).step.call_one(6)
    (session,) = standing(telemetry)
    client = debug.start("attach", session["id"])
    wait_until(lambda: standing(telemetry)[0]["attached"], LIMIT_S)
    refused = debug.run("attach", session["id"])
    assert refused.returncode == 1
    assert f"(pid {client.pid}) is attached" in refused.stderr
    client.kill()
    assert step.get(LIMIT_S) == 60
    client.communicate()
    none_standing(telemetry)


def test_nobody_attaches_without_the_token(telemetry: Telemetry, team: Any) -> None:
    step = team.slice(gpus=0).step.call_one(6)
    (session,) = standing(telemetry)
    with telemetry.serve() as serving:
        for path in (f"attach/{session['id']}", "run", "continue", "on-failure"):
            asked = urllib.request.Request(
                f"{serving.url}/debug/{path}", b"{}", {"Authorization": "Bearer guessed"}
            )
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(asked, timeout=LIMIT_S)
    telemetry.debug(session["id"]).close()
    assert step.get(LIMIT_S) == 60


def test_a_failure_stands_before_it_is_told(
    telemetry: Telemetry, debug: MeshDebug, team: Any
) -> None:
    one = team.slice(gpus=0)
    assert one.count.call_one().get(LIMIT_S) == 0
    assert debug.run("on-failure", "--mesh", "trainers").returncode == 0
    failing = one.divide.call_one(3)
    (session,) = standing(telemetry)
    assert (session["kind"], session["function"]) == ("post_mortem", "Trainer.divide")
    with telemetry.debug(session["id"]) as console:
        assert "return number / below" in console.run()
        assert console.run("p below, number") == "(0, 3)\n"
    with pytest.raises(ZeroDivisionError):
        failing.get(LIMIT_S)
    late = this_host().spawn_procs(name="late").spawn("trainers", AsyncTrainer)
    failing = late.divide.call_one(3)
    (session,) = standing(telemetry)
    with telemetry.debug(session["id"]) as console:
        assert console.run("p below, number") == "(0, 3)\n"
    with pytest.raises(ZeroDivisionError):
        failing.get(LIMIT_S)
    telemetry.debug_on_failure("trainers", is_on=False)
    with pytest.raises(ZeroDivisionError):
        one.divide.call_one(3).get(LIMIT_S)
    telemetry.debug_on_failure(limit=0.2)
    with pytest.raises(ZeroDivisionError):
        one.divide.call_one(3).get(LIMIT_S)


@pytest.mark.parametrize("kind", [Trainer, AsyncTrainer])
def test_an_actor_that_stands_can_be_stopped(telemetry: Telemetry, kind: type) -> None:
    procs = this_host().spawn_procs(name="team")
    trainer: Any = procs.spawn("trainers", kind)
    step = trainer.step.call_one(1)
    standing(telemetry)
    with configured(stop_grace_s=1), contextlib.suppress(DeadlineExceeded):
        trainer.stop().get(LIMIT_S)
    with pytest.raises(MeshError):
        step.get(LIMIT_S)
    none_standing(telemetry)
    other: Any = procs.spawn("others", kind)
    step = other.step.call_one(2)
    (session,) = standing(telemetry)
    telemetry.debug(session["id"]).close()
    assert step.get(LIMIT_S) in (20, 21)
    procs.stop().get(LIMIT_S)


def test_closing_telemetry_lets_go(place: Path) -> None:
    procs = this_host().spawn_procs(name="team")
    trainer: Any = procs.spawn("trainers", Trainer)
    with Telemetry(TelemetryConfig(directory=str(place))) as telemetry:
        telemetry.watch(procs)
        sql = "select * from procs where mesh = 'team'"
        wait_until(lambda: telemetry.query(sql).table.num_rows, LIMIT_S)
        step = trainer.step.call_one(1)
        standing(telemetry)
    assert step.get(LIMIT_S) == 10
    procs.stop().get(LIMIT_S)


def test_breakpoints_end_with_their_session(telemetry: Telemetry, team: Any) -> None:
    one = team.slice(gpus=0)
    loop = one.loop.call_one(4)
    (session,) = standing(telemetry)
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
    (session,) = standing(telemetry)
    with telemetry.debug(session["id"]) as console:
        console.run("c")
        assert console.is_ended
    assert loop.get(LIMIT_S) == 1


def test_stepping_ends_with_the_endpoint(telemetry: Telemetry, team: Any) -> None:
    one = team.slice(gpus=0)
    step = one.step.call_one(1)
    (session,) = standing(telemetry)
    with telemetry.debug(session["id"]) as console:
        for _ in range(10):
            if not console.is_ended:
                console.run("n")
        assert console.is_ended
    assert step.get(LIMIT_S) == 10
    assert one.count.call_one().get(LIMIT_S) == 1
