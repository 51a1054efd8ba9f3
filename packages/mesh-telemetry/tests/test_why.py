"""Which rank keeps a program waiting: from the program, a shell and over HTTP."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from recorded_actors import LIMIT_S
from recorded_program import config
from typer.testing import CliRunner

from mesh_core import Actor, endpoint, this_host
from mesh_core.testing import wait_until
from mesh_telemetry import Hang, Telemetry
from mesh_telemetry._collectives.when_imported import when_imported
from mesh_telemetry._hangs.commands import why


class Reader(Actor):
    """Reads, but never to the end."""

    def __init__(self) -> None:
        self.is_open = threading.Event()

    @endpoint
    def read(self) -> None:
        self.is_open.wait()

    @endpoint
    def ready(self) -> None:
        return None


class Caller(Actor):
    """Waits for a reader."""

    @endpoint
    def step(self, reader: Any) -> None:
        reader.read.call_one().get()


def hangs_of(telemetry: Telemetry) -> list[Hang]:
    """Wait until the caller waits for the reader."""

    def found() -> list[Hang] | None:
        hangs = telemetry.why()
        # On a busy machine, a process may not reply in time with its stacks.
        is_known = hangs and hangs[0].culprits[0].mesh == "data" and hangs[0].culprits[0].stack
        return hangs if is_known else None

    hangs: list[Hang] = wait_until(found, LIMIT_S)
    return hangs


@pytest.fixture
def telemetry(place: Path) -> Iterator[Telemetry]:
    """Telemetry that serves, of a program that waits for a caller, which waits for a reader."""
    with Telemetry(config(place)) as made, made.serve():
        data = this_host().spawn_procs(name="data")
        reader = data.spawn("reader", Reader)
        reader.ready.call_one().get(LIMIT_S)
        calls = this_host().spawn_procs(name="calls")
        step = calls.spawn("caller", Caller).step.call_one(reader)
        yield made
        step.cancel()
        for procs in (data, calls):
            procs.stop().get(LIMIT_S)


def run(*words: str) -> str:
    """Run the command; return its output."""
    app = typer.Typer()
    app.command()(why)
    result = CliRunner().invoke(app, [*words, "--pid", str(os.getpid())], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_end_of_a_chain_of_calls_is_named_by_all_interfaces(
    telemetry: Telemetry,
) -> None:
    (hang,) = hangs_of(telemetry)
    (culprit,) = hang.culprits
    assert (culprit.mesh, culprit.rank, hang.kind) == ("data", 0, "blocked")
    assert culprit.where.startswith(f"{__file__}:")
    assert culprit.where.endswith("in Reader.read")
    assert "serves 'read', for which process" in culprit.reason
    assert not hang.is_certain
    assert "rank 0 of 'data'" in run()
    stacks = run("--stacks")
    assert "  stack of rank 0:\n" in stacks
    assert f"    {__file__}:" in stacks
    check_json()


def check_json() -> None:
    """Check the output of the command for programs."""

    class Context:
        """Prints as the command line of mesh-jobs does."""

        def print_json(self, value: Any) -> None:
            print(json.dumps(value))

    app = typer.Typer()
    app.command()(why)
    words = ["--json", "--pid", str(os.getpid())]
    result = CliRunner().invoke(app, words, obj=Context(), catch_exceptions=False)
    (hang,) = json.loads(result.stdout)["hangs"]
    assert hang["culprits"][0]["mesh"] == "data"
    assert hang["text"].startswith("rank 0 of 'data'")


def test_no_hang_is_reported_if_no_rank_waits(place: Path) -> None:
    with Telemetry(config(place)) as telemetry, telemetry.serve():
        assert telemetry.why() == []
        assert run() == "no rank keeps another one waiting\n"


def test_a_callback_runs_when_its_module_is_imported_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "imported_later.py").write_text("value = 7\n")
    seen: list[ModuleType] = []
    before = list(sys.meta_path)
    when_imported("imported_later", seen.append)
    assert not seen
    exec("import imported_later", {})
    module = sys.modules["imported_later"]
    assert seen == [module]
    assert module.value == 7
    assert sys.meta_path == before
    when_imported("imported_later", seen.append)
    assert seen == [module, module]
    monkeypatch.delitem(sys.modules, "imported_later")
