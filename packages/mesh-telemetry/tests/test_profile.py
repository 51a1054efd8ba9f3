"""Traces of a program: the timeline of all actors, and the messages that caused their work."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from perfetto_traces import Trace, read_trace
from recorded_actors import LIMIT_S

from mesh_core import Actor, concurrent_endpoint, endpoint, get_meter, span, this_host
from mesh_core.testing import kill_proc, wait_until
from mesh_telemetry import Telemetry, TelemetryConfig, TelemetryError


class Leaf(Actor):
    @endpoint
    def grow(self, number: int) -> int:
        with span("growing", {"number": number}), span("in depth"):
            get_meter().create_counter("leaves", unit="1").add(2)
        return number

    @endpoint
    def fail(self) -> None:
        raise ValueError("it is dry")

    @endpoint
    def say(self, text: str) -> None:
        print(text, flush=True)


class Branch(Actor):
    @endpoint
    def grow(self, leaf: Leaf, number: int) -> int:
        return leaf.grow.call_one(number).get()


class Many(Actor):
    """Serves several calls concurrently, which do not end in the order of their starts."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    @concurrent_endpoint
    async def together(self, count: int) -> int:
        import asyncio

        done = asyncio.Event()
        self.waiting.append(done)
        with span("together"):
            if len(self.waiting) == count:
                for one in self.waiting:
                    one.set()
            await done.wait()
        return count


@pytest.fixture
def telemetry(place: Path) -> Iterator[Telemetry]:
    with Telemetry(TelemetryConfig(directory=str(place))) as started:
        yield started


def served(trace: Trace, name: str) -> list[Any]:
    """Return the messages that an actor has served."""
    return [
        one
        for one in trace.shown
        if one.category == "message" and not one.is_moment and name in one.track
    ]


def test_messages_spans_and_replies_are_joined(telemetry: Telemetry, tmp_path: Path) -> None:
    procs = this_host().spawn_procs({"n": 2}, name="tree")
    branch = procs.slice(n=0).spawn("branch", Branch)
    leaf = procs.slice(n=1).spawn("leaf", Leaf)
    leaf.grow.call_one(0).get()
    ready = []
    path = tmp_path / "trace.pftrace"
    with telemetry.profile(path, on_trace_ready=ready.append):
        for number in range(3):
            assert branch.grow.call_one(leaf, number).get() == number
    (told,) = ready
    assert (told.path, told.spans, told.failed) == (path, 6, ())
    trace = read_trace(path)
    inner, outer = served(trace, "leaf[0]"), served(trace, "branch[0]")
    assert (len(inner), len(outer)) == (3, 3)
    for one in inner + outer:
        assert one.end_ns is not None
        assert one.arguments["status"] == "complete"
        assert one.arguments["queue_us"] >= 0
        (flow,) = one.flows
        sent, came = sorted(
            (other for other in trace.shown if flow in other.flows and other is not one),
            key=lambda other: other.begin_ns,
        )
        assert sent.name.startswith("send ")
        assert came.name.startswith("reply ")
        assert sent.begin_ns <= one.begin_ns <= one.end_ns <= came.begin_ns
        assert one.process.startswith("tree[1]" if one in inner else "tree[0]")
        assert sent.process == came.process
        assert sent.process.startswith("tree[0]" if one in inner else "root")
    for one in trace.named("in depth"):
        assert one.parent is not None
        assert one.parent.name == "growing"
        assert one.parent.parent in inner
        assert json.loads(one.parent.arguments["fields"])["number"] in range(3)
    # The previous call may be in the same interval of 0.1 s.
    assert trace.counters["leaves"][-1] in (6, 8)
    assert trace.counters["queue of leaf[0]"] == [1, 0] * 3
    procs.stop().get()


def test_overlapping_calls_are_on_separate_tracks(telemetry: Telemetry, tmp_path: Path) -> None:
    procs = this_host().spawn_procs(name="crowd")
    many = procs.spawn("many", Many)
    since = time.time()
    futures = [many.together.call_one(4) for _ in range(4)]
    assert [future.get() for future in futures] == [4] * 4
    path = tmp_path / "trace.pftrace.gz"
    told = telemetry.export_perfetto_trace(path, since=since)
    assert (told.messages, told.spans) == (4, 4)
    trace = read_trace(path)
    messages = served(trace, "many[0]")
    assert sorted(one.track for one in messages) == [
        "many[0]", "many[0] (2)", "many[0] (3)", "many[0] (4)",
    ]  # fmt: skip
    assert all(one.end_ns is not None for one in trace.shown if not one.is_moment)
    assert list(tmp_path.iterdir()) == [path]
    procs.stop().get()


def test_failures_and_lines_are_instant_events(telemetry: Telemetry, tmp_path: Path) -> None:
    procs = this_host().spawn_procs({"n": 2}, name="tree")
    leaves = procs.spawn("leaves", Leaf)
    leaves.say.call("hello from a leaf").get()
    with pytest.raises(Exception, match="it is dry"):
        leaves.slice(n=0).fail.call_one().get()
    kill_proc(procs, 1)
    with pytest.raises(Exception, match="SIGKILL"):
        leaves.slice(n=1).grow.call_one(1).get()

    def shown() -> Trace | None:
        path = tmp_path / "trace.pftrace"
        telemetry.export_perfetto_trace(path)
        trace = read_trace(path)
        lines = [one.arguments["line"] for one in trace.named("stdout")]
        return trace if lines.count("hello from a leaf") == 2 else None

    trace = wait_until(shown, LIMIT_S)
    (death,) = trace.named("the process died")
    assert death.process.startswith("tree[1]")
    assert death.track == "failures"
    assert "9" in death.arguments["reason"]
    assert "failed" in [one.arguments.get("status") for one in served(trace, "leaves[0]")]
    procs.replace(1)
    procs.stop().get()


def test_mesh_profile_fetches_the_trace_of_a_program(telemetry: Telemetry, tmp_path: Path) -> None:
    procs = this_host().spawn_procs(name="tree")
    procs.spawn("leaf", Leaf).grow.call_one(1).get()
    with telemetry.serve() as serving:
        path = tmp_path / "made.pftrace.gz"
        done = mesh_profile("--last", "1h", "-o", str(path))
        assert done.returncode == 0, done.stderr
        assert str(path) in done.stdout
        assert served(read_trace(path), "leaf[0]")
        nothing = tmp_path / "nothing.pftrace"
        assert mesh_profile("--seconds", "0.01", "-o", str(nothing)).returncode == 0
        assert served(read_trace(nothing), "leaf[0]") == []
        wrong = mesh_profile("--last", "ever", "-o", str(tmp_path / "not.pftrace"))
        assert wrong.returncode == 1
        assert "30s" in wrong.stderr
        assert not (tmp_path / "not.pftrace").exists()
        asked = urllib.request.Request(
            f"{serving.url}/profile?since_us=yesterday",
            headers={"Authorization": f"Bearer {serving.token}"},
        )
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(asked, timeout=LIMIT_S)
    procs.stop().get()


def mesh_profile(*words: str) -> subprocess.CompletedProcess[str]:
    program = (
        "import typer\n"
        "from mesh_core import MeshError\n"
        "from mesh_telemetry._profile.commands import profile\n"
        "app = typer.Typer()\n"
        "app.command()(profile)\n"
        "try:\n"
        "    app()\n"
        "except MeshError as error:\n"
        "    raise SystemExit(str(error))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_trace_requires_started_telemetry(tmp_path: Path) -> None:
    with pytest.raises(TelemetryError, match="start"):
        Telemetry().export_perfetto_trace(tmp_path / "trace.pftrace")
    assert list(tmp_path.iterdir()) == []
