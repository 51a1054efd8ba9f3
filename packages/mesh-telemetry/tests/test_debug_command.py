"""`mesh debug` from a shell: paused code, its commands, and when it continues."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from debugged_actors import LIMIT_S, AsyncTrainer, Trainer, paused_sessions, wait_until_none_paused
from debugging_command import MeshDebug

from mesh_core import (
    this_host,
)
from mesh_core.testing import wait_until
from mesh_telemetry import Telemetry, TelemetryConfig


@pytest.fixture
def telemetry(place: Path) -> Iterator[Telemetry]:
    with Telemetry(TelemetryConfig(directory=str(place))) as started:
        yield started


@pytest.fixture
def debug(telemetry: Telemetry) -> Iterator[MeshDebug]:
    with telemetry.serve():
        yield MeshDebug()


@pytest.fixture
def team() -> Iterator[Any]:
    procs = this_host().spawn_procs({"gpus": 4}, name="team")
    yield procs.spawn("trainers", Trainer)
    procs.stop().get(LIMIT_S)


def test_the_command_lists_attaches_and_continues(
    telemetry: Telemetry, debug: MeshDebug, team: Any
) -> None:
    one = team.slice(gpus=2)
    step = one.step.call_one(4)
    (session,) = paused_sessions(telemetry)
    listed = debug.run("list")
    assert session["id"] in listed.stdout
    assert "Trainer.step" in listed.stdout
    done = debug.run("attach", typed="p loss\np rank_of_nobody\n!loss += 1\nc\n")
    assert "(Pdb) 40\n" in done.stdout
    assert "NameError" in done.stdout
    assert "the code continues" in done.stdout
    assert step.get(LIMIT_S) == 41
    step = one.step.call_one(5)
    (session,) = paused_sessions(telemetry)
    kept = debug.run("attach", "--keep", session["id"], typed="p loss\n")
    assert "(Pdb) 50" in kept.stdout
    # It detects a moment later that the client has disconnected.
    wait_until(lambda: not paused_sessions(telemetry)[0]["attached"], LIMIT_S)
    gone = debug.run("attach", "nowhere")
    assert gone.returncode == 1
    assert "mesh debug list" in gone.stderr
    assert "trainers 2: continues" in debug.run("continue", session["id"]).stdout
    assert step.get(LIMIT_S) == 50
    none = debug.run("attach")
    assert (none.returncode, none.stderr.count("\n")) == (1, 1)


def test_a_command_is_cast_to_many_sessions(
    telemetry: Telemetry, debug: MeshDebug, team: Any
) -> None:
    steps = team.step.call(1)
    found = paused_sessions(telemetry, 4)
    same = debug.run("cast", "p number")
    assert same.stdout == "trainers 0, trainers 1, trainers 2, trainers 3:\n1\n", same.stderr
    some = debug.run("cast", "p loss", "--mesh", "trainers", "--ranks", "0,2-3")
    assert some.stdout == "trainers 0:\n10\ntrainers 2:\n12\ntrainers 3:\n13\n"
    with telemetry.debug(found[1]["id"]):
        busy = debug.run("cast", "p number")
        assert busy.returncode == 1
        assert "process" in busy.stdout
    assert debug.run("continue").returncode == 1
    assert debug.run("continue", "--all").stdout.count("continues") == 3
    assert list(steps.get(LIMIT_S).values()) == [10, 11, 12, 13]


def test_an_actor_continues_when_its_client_is_killed(
    telemetry: Telemetry, debug: MeshDebug, team: Any
) -> None:
    step = team.slice(gpus=0).step.call_one(6)
    (session,) = paused_sessions(telemetry)
    client = debug.start("attach", session["id"])
    wait_until(lambda: paused_sessions(telemetry)[0]["attached"], LIMIT_S)
    refused = debug.run("attach", session["id"])
    assert refused.returncode == 1
    assert f"(pid {client.pid}) is attached" in refused.stderr
    client.kill()
    assert step.get(LIMIT_S) == 60
    client.communicate()
    wait_until_none_paused(telemetry)


def test_debug_requests_without_the_token_are_refused(telemetry: Telemetry, team: Any) -> None:
    step = team.slice(gpus=0).step.call_one(6)
    (session,) = paused_sessions(telemetry)
    with telemetry.serve() as serving:
        for path in (f"attach/{session['id']}", "run", "continue", "on-failure"):
            asked = urllib.request.Request(
                f"{serving.url}/debug/{path}", b"{}", {"Authorization": "Bearer guessed"}
            )
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(asked, timeout=LIMIT_S)
    telemetry.debug(session["id"]).close()
    assert step.get(LIMIT_S) == 60


def test_a_failure_pauses_before_the_caller_is_notified(
    telemetry: Telemetry, debug: MeshDebug, team: Any
) -> None:
    one = team.slice(gpus=0)
    assert one.count.call_one().get(LIMIT_S) == 0
    assert debug.run("on-failure", "--mesh", "trainers").returncode == 0
    failing = one.divide.call_one(3)
    (session,) = paused_sessions(telemetry)
    assert (session["kind"], session["function"]) == ("post_mortem", "Trainer.divide")
    with telemetry.debug(session["id"]) as console:
        assert "return number / below" in console.run()
        assert console.run("p below, number") == "(0, 3)\n"
    with pytest.raises(ZeroDivisionError):
        failing.get(LIMIT_S)
    procs = this_host().spawn_procs(name="late")
    failing = procs.spawn("trainers", AsyncTrainer).divide.call_one(3)
    (session,) = paused_sessions(telemetry)
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
    procs.stop().get(LIMIT_S)
