"""Heap snapshots of processes, taken with memray."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer
from action_requests import post
from heap_checks import LEAK_LINE, SOURCE, leaks_of, while_it_runs
from leaking_actors import MIB, Leaky
from recorded_actors import LIMIT_S
from recorded_program import config
from typer.testing import CliRunner

from mesh_core import ProcMesh, this_host
from mesh_core.testing import wait_until
from mesh_telemetry import HeapError, HeapSnapshot, Telemetry
from mesh_telemetry._heap import tracked_process
from mesh_telemetry._heap.commands import heap
from mesh_telemetry._heap.options import HeapOptions


class Team:
    """Two processes that are recorded."""

    def __init__(self, place: Path) -> None:
        self.telemetry = Telemetry(config(place)).start()
        self.procs: ProcMesh = this_host().spawn_procs({"gpus": 2}, name="team")
        self.actors: Any = self.procs.spawn("leaky", Leaky)
        self.actors.leak.call().get(LIMIT_S)
        rows = self.telemetry.query("select proc from procs where mesh = 'team' order by rank")
        self.names: list[str] = rows.table.column("proc").to_pylist()

    def pid(self, rank: int) -> int:
        found: int = list(self.actors.pid.call().get(LIMIT_S).values())[rank]
        return found

    def close(self) -> None:
        self.telemetry.close()
        self.procs.stop().get(LIMIT_S)


@pytest.fixture(scope="session")
def preloaded_too() -> tuple[str, ...]:
    """Nothing: memray takes seconds to start in a process that has loaded Arrow."""
    return ()


class ServedTeam(Team):
    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.serving = self.telemetry.serve()

    def post(self, **said: object) -> tuple[int, str, bytes]:
        return post(self.serving, "/memray/heap", **said)


@pytest.fixture(scope="module")
def served_team(shared_place: Path) -> Iterator[ServedTeam]:
    made = ServedTeam(shared_place)
    yield made
    made.close()


@pytest.fixture
def team(served_team: ServedTeam) -> Iterator[ServedTeam]:
    """Processes that the tests share, without the memory that an earlier test has leaked."""
    yield served_team
    served_team.actors.forget.call().get(LIMIT_S)


def test_the_line_that_leaks_is_found(team: Team, tmp_path: Path) -> None:
    path = tmp_path / "heap.html"
    snapshot: HeapSnapshot = while_it_runs(
        lambda: team.telemetry.heap_snapshot(team.names[1], seconds=1.0, path=path),
        lambda: team.actors.leak.call().get(LIMIT_S),
    )
    assert snapshot.failed == ()
    largest = snapshot.table.to_pylist()[0]
    assert leaks_of([largest]) == [largest]
    assert largest["proc"] == team.names[1]
    assert largest["pid"] == team.pid(1)
    assert largest["kind"] == "left"
    # The list that keeps them is allocated there, too.
    assert largest["allocations"] > 2
    assert largest["bytes"] >= (largest["allocations"] - 1) * MIB
    assert path.read_text() == snapshot.html
    assert "# the leak" in snapshot.html
    sql = "select * from heap where snapshot_id = $1 order by bytes desc"
    stored = team.telemetry.query(sql, [snapshot.snapshot_id]).table.to_pylist()
    assert stored[0] == largest


@pytest.mark.slow
def test_rows_name_python_lines_with_native_frames_and_objects(team: Team) -> None:
    snapshot: HeapSnapshot = while_it_runs(
        lambda: team.telemetry.heap_snapshot(team.names[1], seconds=1.0, native=True, objects=True),
        lambda: team.actors.leak.call().get(LIMIT_S),
    )
    assert leaks_of(snapshot.table.to_pylist()[:1])


@pytest.mark.slow
def test_the_peak_includes_memory_that_was_freed(team: Team) -> None:
    snapshot: HeapSnapshot = while_it_runs(
        lambda: team.telemetry.heap_snapshot(team.names, seconds=1.0, peak=True),
        lambda: team.actors.use.call().get(LIMIT_S),
    )
    assert sorted(snapshot.htmls) == team.names
    for proc in team.names:
        rows = [row for row in snapshot.table.to_pylist() if row["proc"] == proc]
        assert (rows[0]["function"], rows[0]["kind"]) == ("use", "peak")
        assert rows[0]["bytes"] >= 64 * MIB
    with pytest.raises(ValueError, match="use one of htmls"):
        assert snapshot.html


def test_a_process_can_be_tracked_repeatedly_but_not_concurrently(team: Team) -> None:
    name = team.names[0]
    team.telemetry.heap_snapshot(name, seconds=0.1)
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(team.telemetry.heap_snapshot, name, seconds=3.0)
        wait_until(lambda: has_part(team.pid(0)), LIMIT_S)
        with pytest.raises(HeapError, match="another heap snapshot of this process is in progress"):
            team.telemetry.heap_snapshot(name, seconds=0.1)
        taking.result(LIMIT_S)


def has_part(pid: int) -> bool:
    """Return whether a process has the file open into which memray writes."""
    folder = f"/proc/{pid}/fd"
    for fd in os.listdir(folder):
        with suppress(FileNotFoundError):
            if "/heaps/part-" in os.readlink(f"{folder}/{fd}"):
                return True
    return False


def test_a_process_that_dies_during_a_snapshot_raises_an_error(place: Path) -> None:
    with closing(Team(place)) as team, ThreadPoolExecutor(1) as pool:
        pid = team.pid(1)
        taking = pool.submit(team.telemetry.heap_snapshot, team.names[1], seconds=200.0)
        wait_until(lambda: has_part(pid), LIMIT_S)
        os.kill(pid, signal.SIGKILL)
        assert team.actors.pid.call().exception(LIMIT_S) is not None
        with pytest.raises(HeapError, match=f"process {team.names[1]}: it has exited"):
            taking.result(LIMIT_S)


def test_unknown_processes_and_invalid_durations_raise_errors(team: Team) -> None:
    for name in ("0.999", "77.1"):
        with pytest.raises(HeapError, match=f"no heap snapshot was taken: process {name}: "):
            team.telemetry.heap_snapshot(name, seconds=0.1)
    partly = team.telemetry.heap_snapshot([team.names[0], "0.999"], seconds=0.1)
    assert [one.proc for one in partly.failed] == ["0.999"]
    for seconds in (0.0, -1.0, 301.0):
        with pytest.raises(ValueError, match="use a value above 0 and up to 300"):
            team.telemetry.heap_snapshot(team.names[0], seconds=seconds)


def test_without_memray_the_error_says_what_to_install(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memray.py").write_text("raise ImportError('it is missing')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    message = r"pip install 'torchmesh-telemetry\[memray\]'"
    with closing(Team(place)) as team, pytest.raises(HeapError, match=message):
        team.telemetry.heap_snapshot(team.names[0], seconds=0.1)


def test_the_next_snapshot_can_begin_once_the_previous_file_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(tracked_process, "_tracker", lambda path, _: nullcontext(path.touch()))
    # The work of a thread after its file has appeared takes a long time.
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: over.wait(LIMIT_S))
    (tmp_path / tracked_process.HEAP_FOLDER).mkdir()
    process = tracked_process.TrackedProcess(tmp_path)
    for name in ("first", "second"):
        words = HeapOptions(0.01, False, False, False).words()
        assert process.start(f"{name} {words}") is None
        wait_until((tmp_path / tracked_process.HEAP_FOLDER / name).exists, LIMIT_S)
    over.set()
    process.close()


def test_options_round_trip_through_their_text_form() -> None:
    options = HeapOptions(2.5, True, False, True)
    assert HeapOptions.parsed(options.words()) == options


def test_snapshots_are_taken_from_the_command_line(team: ServedTeam, tmp_path: Path) -> None:
    app = typer.Typer()
    app.command("heap")(heap)
    path = tmp_path / "leaks.html"
    words = [team.names[0], "--seconds", "1", "-o", str(path), "--pid", str(os.getpid())]
    result = while_it_runs(
        lambda: CliRunner().invoke(app, words, catch_exceptions=False),
        lambda: team.actors.leak.call().get(LIMIT_S),
    )
    assert result.exit_code == 0, result.output
    # This program also prints the logs of its processes, where memray may write a warning.
    lines = [line for line in result.stdout.splitlines() if not line.startswith("[team")]
    assert f"leak ({SOURCE}:{LEAK_LINE})" in lines[0]
    assert lines[-1].startswith(f"{path}: ")
    assert "# the leak" in path.read_text()


def test_snapshots_are_taken_over_http(team: ServedTeam) -> None:
    status, kind, body = team.post(proc=team.names[0], seconds=0.1)
    assert (status, kind) == (200, "text/html; charset=utf-8")
    assert b"<html" in body
    status, kind, body = team.post(proc=team.names[0], seconds=0.1, rows=True, objects=True)
    assert (status, kind) == (200, "application/json")
    assert {"snapshot_id", "html", "rows"} == json.loads(body).keys()
    for said, code, name in (
        ({}, 400, "bad_json"),
        ({"proc": "0.0", "seconds": 301}, 400, "bad_json"),
        ({"proc": "0.0", "peak": 1}, 400, "bad_json"),
        ({"proc": "0.999", "seconds": 0.1}, 502, "no_snapshot"),
    ):
        status, _, body = team.post(**said)
        assert (status, json.loads(body)["error"]["code"]) == (code, name)


def test_a_cancelled_snapshot_stops_the_tracking(team: Team) -> None:
    (host,) = team.telemetry._started().hosts.call_one().get(LIMIT_S)
    options = HeapOptions(200.0, False, False, False)
    taking = host.rows.snapshot_heap.call_one("id", team.names[0], options)
    pid = team.pid(0)
    wait_until(lambda: has_part(pid), LIMIT_S)
    taking.cancel()
    wait_until(lambda: not has_part(pid), LIMIT_S)


def test_a_client_that_disconnects_stops_the_tracking(team: ServedTeam) -> None:
    pid = team.pid(0)
    client = HTTPConnection(urlsplit(team.serving.url).netloc, timeout=LIMIT_S)
    said = json.dumps({"proc": team.names[0], "seconds": 200})
    client.request(
        "POST", "/memray/heap", said, {"Authorization": f"Bearer {team.serving.act_token}"}
    )
    wait_until(lambda: has_part(pid), LIMIT_S)
    client.close()
    wait_until(lambda: not has_part(pid), LIMIT_S)
