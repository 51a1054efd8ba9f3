"""`mesh top` while a program changes: stopped, killed, unresponsive and many actors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import OptionList, Static
from top_pilot import LIMIT_S, Person, top
from top_program import program

from mesh_telemetry._serve.http import HttpServer
from mesh_telemetry._serve.program_files import ServedProgramFile
from mesh_telemetry._serve.routes import Request, Route, json_reply, known_route
from mesh_telemetry._serve.scopes import Tokens

COMMAND = Path(__file__).with_name("top_command.py")


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder for events of processes; killed processes leave some."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    made = Path(tempfile.mkdtemp(prefix="tel-", dir="/dev/shm"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def question(person: Person) -> str:
    """Return the question of the top screen."""
    return str(person.app.screen.query(Static).first().content)


async def test_actors_are_stopped_after_a_confirmation(around: Path) -> None:
    with program(around) as running:
        async with top(running.pid) as person:
            await person.go("team[0]")
            await person.press("right")
            await person.go("trainers[0]")
            await person.press("x")
            await person.until(lambda: len(person.app.screen_stack) == 2)
            assert "Stop trainers, 2 actors?" in question(person)
            await person.press("n")
            assert running.do("say still there") == "said"
            await person.press("x")
            await person.until(lambda: len(person.app.screen_stack) == 2)
            await person.press("y")
            await person.until(lambda: "trainers[0]" in person.titles("stopped"))
            assert running.do("say again") == "stopped: stopped by request of mesh top"
            await person.press("h")
            await person.until(lambda: "trainers[0]" not in person.titles())


async def test_processes_can_be_stopped_but_the_program_cannot(around: Path) -> None:
    with program(around) as running:
        async with top(running.pid) as person:
            await person.go("team[1]")
            await person.press("x")
            await person.until(lambda: len(person.app.screen_stack) == 2)
            assert "Stop team, 2 processes?" in question(person)
            await person.press("y")
            await person.until(lambda: {"team[0]", "team[1]"} <= set(person.titles("stopped")))
            await person.press("h")
            await person.until(lambda: "team[0]" not in person.titles())
            await person.go("root")
            await person.press("x")
            await person.until(lambda: person.app._notifications)
            shown = person.app._notifications
            assert any("exit the program instead" in one.message for one in shown)
            assert len(person.app.screen_stack) == 1
            assert running.do("say again") == "stopped: stopped by request of mesh top"


async def test_a_killed_process_is_shown_as_failed_with_its_actors(around: Path) -> None:
    with program(around) as running:
        async with top(running.pid) as person:
            await person.go("team[1]")
            await person.press("right")
            await person.until(lambda: "trainers[1]" in person.titles("running"))
            running.do("kill 1")
            await person.until(lambda: "team[1]" in person.titles("failed"))
            await person.until(lambda: "trainers[1]" in person.titles("failed"))
            await person.go("team[1]")
            await person.until(lambda: "exited with signal 9" in person.tab("Info"))


async def test_the_exit_of_a_program_is_shown_and_another_is_found(around: Path) -> None:
    with program(around) as first:
        async with top(first.pid) as person:
            await person.until(lambda: "office[0]" in person.titles())
            first.kill()
            await person.until(lambda: f"program {first.pid} has exited" in person.text("status"))
            assert "waiting for a program" in person.text("status")
            with program(around) as second:
                await person.until(lambda: str(second.pid) in person.text("head"))
                await person.until(lambda: person.text("status") == "")
                await person.until(lambda: "office[0]" in person.titles())
            await person.until(lambda: f"program {second.pid}" in person.text("status"))
            await person.press("q")


async def test_one_of_several_programs_can_be_selected(around: Path) -> None:
    with program(around) as first, program(around) as second:
        async with top(None) as person:
            await person.until(lambda: person.app.screen.query(OptionList))
            await person.press("j", "enter")
            await person.until(lambda: str(second.pid) in person.text("head"))
        assert first.do("say hello") == "said"


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_many_actors_are_shown_in_pages(around: Path, count: int) -> None:
    with program(around) as running:
        running.do(f"spawn {count}")
        async with top(running.pid) as person:
            await person.until(lambda: f"{count + 3} actors" in person.text("head"))
            await person.go("crowd[0]")
            await person.press("right")
            await person.until(lambda: "member0099[0]" in person.titles())
            assert "member0100[0]" not in person.titles()
            await person.press("G", "k")
            while person.tree.current is None or person.tree.current.kind != "more":
                await person.press("k")
            await person.press("enter")
            await person.until(lambda: "member0199[0]" in person.titles())
            assert "member0200[0]" not in person.titles()
            last = f"member{count // 2 - 1:04}"
            await person.press("slash")
            await person.write(last)
            await person.until(lambda: f"{last}[0]" in person.titles())
            await person.until(lambda: "member0099[0]" not in person.titles())


def answering(rows: dict[str, list[dict[str, Any]]], let_go: threading.Event) -> list[Route]:
    """Return routes of a program with unresponsive host b; stack queries wait for `let_go`."""

    def query(request: Request) -> Any:
        sql = request.json_object()["sql"]
        found = next((some for name, some in rows.items() if f"from {name}" in sql), [])
        if "from stacks" in sql:
            let_go.wait(LIMIT_S)
        failed = [{"host": "b/1", "cause": "it has not replied in time"}]
        coverage = {"queried": ["a/0", "b/1"], "replied": ["a/0"], "failed": failed}
        return json_reply({"columns": [], "rows": found, "coverage": coverage})

    return [known_route("POST", "/query", query)]


PROC = {
    "host": "a", "proc": "0.0", "mesh": "root", "mesh_id": 0, "rank": 0, "incarnation": 0,
    "pid": 1, "state": "running", "cpu_s": 1.0, "rss_bytes": 10_000_000, "threads": 1,
    "started_us": 1, "timestamp_us": 2,
}  # fmt: skip


async def test_unresponsive_hosts_are_reported_and_do_not_block_the_screen(around: Path) -> None:
    let_go = threading.Event()
    tokens = Tokens.random()
    with HttpServer(answering({"procs": [PROC]}, let_go), tokens) as server:
        note = ServedProgramFile(os.getpid(), server.url, "", tokens)
        try:
            async with top(os.getpid()) as person:
                await person.until(lambda: "host b/1 did not reply" in person.text("status"))
                assert "it has not replied in time" in person.text("status")
                # While one query is pending, keys are handled and other queries are sent.
                await person.press("4", "m")
                assert person.app.view.is_by_mesh
                await person.press("1", "m")
                await person.go("root")
                await person.until(lambda: "rss_bytes" in person.tab("Info"))
                await person.press("4", "q")
        finally:
            let_go.set()
            note.remove()


def mesh_top(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `mesh top` with some options."""
    return subprocess.run(
        [sys.executable, COMMAND, *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S * 2,
        check=False,
    )


def test_the_once_option_prints_the_state_for_scripts(around: Path) -> None:
    alone = mesh_top("--once")
    assert (alone.returncode, "serve()" in alone.stderr) == (1, True)
    with program(around) as running:
        well = mesh_top("--once", "--json", "--pid", str(running.pid))
        said = json.loads(well.stdout)
        assert (well.returncode, said["is_healthy"], said["pid"]) == (0, True, running.pid)
        assert {one["mesh"] for one in said["procs"]} >= {"root", "office", "team"}
        assert "trainers" in {one["given_name"] for one in said["meshes"]}
        running.do("lock")
        locked = mesh_top("--once", "--json")
        assert locked.returncode == 1
        (cycle,) = json.loads(locked.stdout)["deadlocks"]
        assert sorted(one["actor"] for one in cycle) == ["left", "right"]
        running.do("fail no more data")
        failed = mesh_top("--once")
        assert failed.returncode == 1
        assert "failed: trainers[0]: ValueError: no more data" in failed.stdout
        assert "deadlock: " in failed.stdout
    assert mesh_top("--json").returncode == 1
    assert mesh_top("--refresh", "0").returncode == 1


def test_without_textual_the_error_says_what_to_install(tmp_path: Path) -> None:
    program = "import sys; sys.modules['textual'] = None\nimport top_command; top_command.main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=COMMAND.parent,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 1
    assert "pip install 'torchmesh-telemetry[top]'" in done.stderr
