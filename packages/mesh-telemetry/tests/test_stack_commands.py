"""Stack dumps from a shell and over HTTP."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from action_requests import post
from recorded_actors import LIMIT_S
from recorded_program import config
from stuck_actors import Stuck
from typer.testing import CliRunner

from mesh_core import this_host
from mesh_telemetry import Telemetry
from mesh_telemetry._stacks.commands import dump, flame
from mesh_telemetry._stacks.text import formatted, grouped, stacks_of


class ServedProgram:
    """A program that serves telemetry, with two busy-looping processes."""

    def __init__(self, place: Path) -> None:
        self.telemetry = Telemetry(config(place)).start()
        self.serving = self.telemetry.serve()
        self.procs = this_host().spawn_procs({"gpus": 2}, name="team")
        self.actors: Any = self.procs.spawn("stuck", Stuck)
        self.spinning = self.actors.spin.call(600.0)
        rows = self.telemetry.query("select proc from procs where mesh = 'team' order by rank")
        self.names: list[str] = rows.table.column("proc").to_pylist()

    def post(self, path: str, **said: object) -> tuple[int, str, bytes]:
        return post(self.serving, path, **said)

    def close(self) -> None:
        self.spinning.cancel()
        self.telemetry.close()
        self.procs.stop().get(LIMIT_S)


@pytest.fixture
def served(place: Path) -> Iterator[ServedProgram]:
    made = ServedProgram(place)
    yield made
    made.close()


def run(*words: str) -> tuple[str, str]:
    """Run a command; return its standard output and standard error."""
    app = typer.Typer()
    app.command("dump")(dump)
    app.command("flame")(flame)
    result = CliRunner().invoke(app, [*words, "--pid", str(os.getpid())], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_identical_stacks_are_printed_once(served: ServedProgram) -> None:
    out, err = run("dump", "--where", "mesh = 'team'", "--locals", "--timeout", "30")
    spins = [block for block in out.split("\n\n") if "Stuck.spin" in block]
    assert spins
    assert sum(block.count("Stuck.spin") for block in spins) == len(spins)
    heads = " ".join(block.splitlines()[0] for block in spins)
    assert all(name in heads for name in served.names)
    assert "        seconds = 600" in out
    assert "mesh-agent" not in out
    assert "pass --all to show them" in err
    out, err = run("dump", "--proc", served.names[0], "--all", "--timeout", "30")
    assert served.names[1] not in out
    assert "--all" not in err
    assert "mesh_core" in out


def test_a_flame_graph_is_written(served: ServedProgram, tmp_path: Path) -> None:
    path = tmp_path / "out.svg"
    out, _ = run("flame", served.names[0], "--seconds", "1", "-o", str(path))
    assert out.startswith(f"{path}: ")
    assert "Stuck.spin" in path.read_text()


def test_stacks_are_dumped_over_http(served: ServedProgram) -> None:
    status, _, body = served.post("/pyspy/dump", where=[*served.names, "0.999"], timeout=LIMIT_S)
    made = json.loads(body)
    assert (status, made["procs"]) == (200, served.names)
    assert [one["proc"] for one in made["failed"]] == ["0.999"]
    sql = "select count(distinct proc) as n from pyspy_frames where dump_id = $1"
    assert served.telemetry.query(sql, [made["dump_id"]]).table.to_pylist() == [{"n": 2}]
    status, kind, body = served.post("/pyspy/flame", proc=served.names[0], seconds=1)
    assert (status, kind) == (200, "image/svg+xml")
    assert b"Stuck.spin" in body


CASES: list[tuple[str, dict[str, Any], int, str]] = [
    ("dump", {"where": 5}, 400, "bad_json"),
    ("dump", {"where": [5]}, 400, "bad_json"),
    ("dump", {"native": "yes"}, 400, "bad_json"),
    ("dump", {"timeout": 0}, 400, "bad_json"),
    ("dump", {"where": "no condition"}, 400, "bad_query"),
    ("dump", {"where": ["0.999"]}, 502, "no_stacks"),
    ("flame", {}, 400, "bad_json"),
    ("flame", {"proc": "0.0", "seconds": 301}, 400, "bad_json"),
    ("flame", {"proc": "0.999"}, 502, "no_stacks"),
]


def test_failed_requests_have_an_error_code(place: Path) -> None:
    with Telemetry(config(place)) as telemetry:
        asked = ServedProgram.__new__(ServedProgram)
        asked.serving = telemetry.serve()
        for path, said, status, code in CASES:
            found, _, body = asked.post(f"/pyspy/{path}", **said)
            assert (found, json.loads(body)["error"]["code"]) == (status, code), (path, said)


def row(proc: str, number: int, **more: object) -> dict[str, Any]:
    return {"proc": proc, "pid": 1, "thread_id": number, **more}


def test_the_stacks_of_a_hundred_ranks_are_printed_in_a_few_lines() -> None:
    threads, frames, variables = [], [], []
    for rank in range(100):
        proc = f"0.{rank}"
        threads.append(row(proc, 1, thread_name="MainThread", owns_gil=rank == 7))
        where = 10 if rank == 7 else 20
        frames.append(row(proc, 1, frame_depth=0, name="step", filename="/t.py", line=where))
        frames.append(row(proc, 1, frame_depth=1, name="run", filename="/t.py", line=0))
        variables.append(row(proc, 1, frame_depth=0, name="rank", repr=str(rank % 2)))
        variables.append(row(proc, 1, frame_depth=1, name="size", repr="100"))
    first, last = grouped(stacks_of(threads, frames, variables))
    assert formatted(first) == [
        "99 processes 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8 and 91 more, MainThread",
        "    step (/t.py:20)",
        "        rank = 0 in 0.0, 0.2, 0.4, 0.6 and 46 more; 1 in 0.1, 0.3, 0.5, 0.9 and 45 more",
        "    run (/t.py)",
        "        size = 100",
    ]
    assert formatted(last)[0] == "process 0.7, MainThread, with the GIL: 0.7"
