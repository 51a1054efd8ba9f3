"""An editor attaches to a paused process and can use all debugger features."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from debugged_actors import LIMIT_S, Trainer, paused_sessions, wait_until_none_paused
from debugging_command import MeshDebug
from editor import Editor

from mesh_core import this_host
from mesh_telemetry import DebugError, Telemetry, TelemetryConfig

pytest.importorskip("debugpy")


@pytest.fixture
def telemetry(place: Path) -> Iterator[Telemetry]:
    with Telemetry(TelemetryConfig(directory=str(place))) as started, started.serve():
        yield started


@pytest.fixture
def trainer() -> Iterator[Any]:
    procs = this_host().spawn_procs(name="team")
    yield procs.spawn("trainers", Trainer)
    procs.stop().get(LIMIT_S)


def relayed(session: str) -> tuple[Any, Editor]:
    """Run the relay command, and connect an editor to it."""
    relay = MeshDebug().start("attach", session, "--dap", "--port", "0")
    assert relay.stdout is not None
    relay.stdout.readline()
    text = ""
    while not text.endswith("\n}\n"):
        line = relay.stdout.readline()
        assert line, relay.communicate()
        text += line
    configuration = json.loads(text)
    assert (configuration["type"], configuration["request"]) == ("debugpy", "attach")
    return relay, Editor(configuration["connect"]["port"])


def test_an_editor_stops_where_the_code_is_paused(telemetry: Telemetry, trainer: Any) -> None:
    step = trainer.step.call_one(4)
    (session,) = paused_sessions(telemetry)
    relay, editor = relayed(session["id"])
    editor.attach()
    stopped = editor.event("stopped")
    frames = editor.ask("stackTrace", threadId=stopped["threadId"])["stackFrames"]
    assert frames[0]["name"].endswith("step")
    assert frames[0]["line"] == session["line"] + 1
    assert frames[0]["source"]["path"] == session["file"]
    scopes = editor.ask("scopes", frameId=frames[0]["id"])["scopes"]
    found = editor.ask("variables", variablesReference=scopes[0]["variablesReference"])
    assert {one["name"]: one["value"] for one in found["variables"]}["loss"] == "40"
    told = editor.ask("evaluate", expression="loss + 2", frameId=frames[0]["id"], context="watch")
    assert told["result"] == "42"
    # Its process still responds.
    assert paused_sessions(telemetry)[0]["attached"]
    with pytest.raises(DebugError, match="in use"):
        telemetry.debug(session["id"])
    editor.ask("continue", threadId=stopped["threadId"])
    assert step.get(LIMIT_S) == 40
    again = trainer.step.call_one(5)
    stopped = editor.event("stopped")
    editor.ask("continue", threadId=stopped["threadId"])
    assert again.get(LIMIT_S) == 50
    editor.close()
    wait_until_none_paused(telemetry)
    assert relay.wait(LIMIT_S) == 0
    relay.communicate()
    # Without an editor, breakpoints work as usual.
    step = trainer.step.call_one(6)
    (session,) = paused_sessions(telemetry)
    with telemetry.debug(session["id"]) as console:
        assert console.run("p loss") == "60\n"
    assert step.get(LIMIT_S) == 60


def test_an_actor_continues_when_its_editor_is_killed(telemetry: Telemetry, trainer: Any) -> None:
    for number in (1, 2):
        step = trainer.step.call_one(number)
        (session,) = paused_sessions(telemetry)
        relay, editor = relayed(session["id"])
        editor.attach()
        editor.event("stopped")
        relay.kill()
        relay.communicate()
        assert step.get(LIMIT_S) == number * 10
        editor.close()
        wait_until_none_paused(telemetry)


def test_an_editor_needs_debugpy_on_the_host(telemetry: Telemetry, trainer: Any) -> None:
    trainer.hide.call_one("debugpy").get(LIMIT_S)
    step = trainer.step.call_one(1)
    (session,) = paused_sessions(telemetry)
    refused = MeshDebug().run("attach", session["id"], "--dap")
    assert refused.returncode == 1
    assert "torchmesh-telemetry[debug]" in refused.stderr
    assert paused_sessions(telemetry)[0]["id"] == session["id"]
    telemetry.debug(session["id"]).close()
    assert step.get(LIMIT_S) == 10
