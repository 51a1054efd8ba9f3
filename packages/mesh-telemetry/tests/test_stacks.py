"""Stacks of hanging and running processes, taken with py-spy."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from recorded_actors import LIMIT_S
from recorded_program import config
from stuck_actors import Stuck
from workers import workers

from mesh_core import ProcMesh, attach_to_workers, shutdown_context, this_host
from mesh_core.testing import wait_until
from mesh_telemetry import PySpyError, QueryError, Telemetry
from mesh_telemetry._stacks.flame_graph import FlameOptions
from mesh_telemetry._stacks.flame_stacks import folded
from mesh_telemetry._stacks.pyspy_program import PySpy, PySpyRunError

FRAMES = """
    select f.proc, f.name, f.filename, f.line from pyspy_frames f
    where dump_id = $1 order by f.proc, f.thread_id, f.frame_depth
"""


class Team:
    """Two processes that are recorded."""

    def __init__(self, place: Path) -> None:
        self.telemetry = Telemetry(config(place)).start()
        self.procs: ProcMesh = this_host().spawn_procs({"gpus": 2}, name="team")
        self.actors: Any = self.procs.spawn("stuck", Stuck)
        self.pids = list(self.actors.pid.call().get(LIMIT_S).values())
        found = self.rows("select proc from procs where mesh = 'team' order by rank")
        self.names: list[str] = [row["proc"] for row in found]

    def rows(self, sql: str, *params: Any) -> list[dict[str, Any]]:
        answer = self.telemetry.query(sql, list(params), timeout=LIMIT_S, require_full=True)
        found: list[dict[str, Any]] = answer.table.to_pylist()
        return found

    def kill(self, rank: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pids[rank], signal.SIGKILL)

    def close(self) -> None:
        self.telemetry.close()
        self.procs.stop().get(LIMIT_S)


@pytest.fixture
def team(place: Path) -> Iterator[Team]:
    made = Team(place)
    yield made
    made.close()


def test_a_process_that_holds_the_gil_in_c_code_is_found(team: Team, tmp_path: Path) -> None:
    stuck = team.actors.slice(gpus=1).hold.call_one(str(tmp_path / "held"))
    wait_until((tmp_path / "held").exists, LIMIT_S)
    dump = team.telemetry.pyspy_dump(locals=True, timeout=LIMIT_S)
    assert dump.is_full
    assert set(team.names) < set(dump.procs)
    found = team.rows(
        "select f.proc, f.name, v.repr from pyspy_stack_traces t "
        "join pyspy_frames f on f.dump_id = t.dump_id and f.proc = t.proc "
        "and f.thread_id = t.thread_id join pyspy_local_variables v on v.dump_id = f.dump_id "
        "and v.proc = f.proc and v.thread_id = f.thread_id and v.frame_depth = f.frame_depth "
        "where t.dump_id = $1 and t.owns_gil and v.name = 'batch_size'",
        dump.dump_id,
    )
    assert found == [{"proc": team.names[1], "name": "Stuck.hold", "repr": "4711"}]
    team.kill(1)
    assert stuck.exception(LIMIT_S) is not None


def test_processes_are_chosen_by_a_condition_or_by_name(team: Team) -> None:
    by_rank = team.telemetry.pyspy_dump("mesh = 'team' and rank = 1", timeout=LIMIT_S)
    assert by_rank.procs == (team.names[1],)
    by_name = team.telemetry.pyspy_dump([team.names[0]], timeout=LIMIT_S)
    assert by_name.procs == (team.names[0],)
    (row,) = team.rows("select * from pyspy_dumps where dump_id = $1", by_name.dump_id)
    assert (row["pid"], row["proc"]) == (team.pids[0], team.names[0])
    assert row["proc_ref"] == f"{row['host']}/{row['proc']}"
    assert team.rows("select count(distinct dump_id) as n from pyspy_frames") == [{"n": 2}]
    nothing = team.telemetry.pyspy_dump("rank = 77", timeout=LIMIT_S)
    assert (nothing.procs, nothing.is_full) == ((), True)
    with pytest.raises(QueryError):
        team.telemetry.pyspy_dump("no condition", timeout=LIMIT_S)


def test_a_process_that_does_not_exist_is_reported(team: Team) -> None:
    dump = team.telemetry.pyspy_dump([team.names[0], "0.999", "77.1"], timeout=LIMIT_S)
    assert dump.procs == (team.names[0],)
    assert {(one.proc, one.cause) for one in dump.failed} == {
        ("0.999", "no such process runs here"),
        ("77.1", "its host is unknown"),
    }
    with pytest.raises(PySpyError, match=r"process 0\.999: no such process"):
        team.telemetry.pyspy_dump(["0.999"], timeout=LIMIT_S)


def test_a_suspended_process_is_dumped_and_stays_suspended(team: Team) -> None:
    os.kill(team.pids[0], signal.SIGSTOP)
    try:
        dump = team.telemetry.pyspy_dump([team.names[0]], timeout=LIMIT_S)
        assert dump.procs == (team.names[0],)
        # On a busy host the process may reach the stop after the dump has begun.
        wait_until(lambda: _state(team.pids[0]) == "T", LIMIT_S)
    finally:
        os.kill(team.pids[0], signal.SIGCONT)


@pytest.mark.parametrize("is_killed", [False, True])
def test_only_a_killed_pyspy_leaves_a_process_to_resume(tmp_path: Path, is_killed: bool) -> None:
    program = tmp_path / "py-spy"
    # It stops the process of its option --pid as a user or a debugger would.
    ending = "exec sleep 600" if is_killed else "echo [] && exit 0"
    program.write_text(f'#!/bin/sh\nkill -STOP "$4"\n{ending}\n')
    program.chmod(0o755)
    with subprocess.Popen(["sleep", "600"]) as process:
        until = time.monotonic() + (1.0 if is_killed else LIMIT_S)
        dump = PySpy(str(program)).dump(process.pid, [], until)
        with pytest.raises(PySpyRunError) if is_killed else nullcontext():
            asyncio.run(dump)
        wait_until(lambda: _state(process.pid) == ("S" if is_killed else "T"), LIMIT_S)
        process.kill()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_native_frames_are_included_or_a_warning_says_why(team: Team) -> None:
    dump = team.telemetry.pyspy_dump(native=True, timeout=LIMIT_S)
    assert dump.is_full
    modes = team.rows("select proc, capture_mode, warnings_json from pyspy_dumps")
    assert {row["proc"] for row in modes} == set(dump.procs)
    for row in modes:
        is_native = row["capture_mode"] == "native"
        assert (row["warnings_json"] == "[]") is is_native, row
        frames = team.rows(FRAMES, dump.dump_id)
        found = [one for one in frames if one["proc"] == row["proc"]]
        assert any(".so" in one["filename"] for one in found) is is_native, row
        assert any(one["filename"].endswith(".py") for one in found)


def test_all_hosts_are_dumped_and_each_stores_its_own_stacks(place: Path) -> None:
    with workers(2) as started, Telemetry(config(place)) as telemetry:
        hosts = attach_to_workers([worker.address for worker in started])
        actors: Any = hosts.spawn_procs(name="far").spawn("stuck", Stuck)
        actors.pid.call().get(LIMIT_S)
        dump = telemetry.pyspy_dump("mesh = 'far'", timeout=LIMIT_S)
        assert dump.is_full
        assert len({proc.partition(".")[0] for proc in dump.procs}) == len(dump.procs) == 2
        found = telemetry.query("select distinct proc from pyspy_frames order by proc")
        assert tuple(found.table.column("proc").to_pylist()) == dump.procs
        telemetry.store_pyspy_dump("theirs", dump.procs[1], "[]", timeout=LIMIT_S)
        shutdown_context().get(LIMIT_S)


def test_the_stacks_of_a_flame_graph_are_read_from_its_svg() -> None:
    def call(name: str, first: int, count: int, depth: int) -> str:
        return (
            f"<g><title>{name} ({count:,} samples, 1.00%)</title>"
            f'<rect y="{16 * depth}" fg:x="{first}" fg:w="{count}"/></g>'
        )

    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:fg="http://github.com/jonhoo/inferno">'
        + call("all", 0, 2000, 0)
        + call("b (t.py:2)", 1500, 300, 2)
        + call("main (t.py:1)", 0, 1800, 1)
        + call("a (t.py:3)", 0, 1500, 2)
        + call("a (t.py:3)", 0, 7, 3)
        + call("other &lt;x&gt;", 1800, 200, 1)
        + "</svg>"
    )
    assert folded(svg) == [
        ("main (t.py:1);a (t.py:3);a (t.py:3)", 7),
        ("main (t.py:1);a (t.py:3)", 1493),
        ("main (t.py:1);b (t.py:2)", 300),
        ("other <x>", 200),
    ]
    with pytest.raises(PySpyError, match="cannot read the flame graph"):
        folded("no picture")


def program_of(tmp_path: Path, body: str) -> str:
    """Return a script that replaces py-spy."""
    path = tmp_path / "py-spy-of-test"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o700)
    return str(path)


@pytest.fixture
def stand_in(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start telemetry of this process with another program instead of py-spy."""
    started: list[Telemetry] = []

    def start(program: str) -> Telemetry:
        monkeypatch.setenv("PYSPY_BIN", program)
        started.append(Telemetry(config(place)).start())
        return started[0]

    yield start
    for telemetry in started:
        telemetry.close()


def test_without_py_spy_the_error_says_what_to_do(stand_in: Any) -> None:
    telemetry = stand_in("/nowhere/py-spy")
    for ask in (telemetry.pyspy_dump, lambda: telemetry.flame_graph("0.0", seconds=1)):
        with pytest.raises(PySpyError, match=r"PYSPY_BIN is '/nowhere/py-spy'.*unset it"):
            ask()


def test_without_ptrace_permission_the_error_says_what_to_do(stand_in: Any, tmp_path: Path) -> None:
    body = 'echo "Error: Permission denied (os error 13)" >&2; exit 1'
    telemetry = stand_in(program_of(tmp_path, body))
    with pytest.raises(PySpyError, match=r"0\.0: .*kernel.yama.ptrace_scope.*SYS_PTRACE"):
        telemetry.pyspy_dump()


def test_a_dump_that_takes_too_long_is_killed(stand_in: Any, tmp_path: Path) -> None:
    body = f"trap '' INT\necho $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid\n"
    telemetry = stand_in(program_of(tmp_path, body + "while :; do sleep 0.1; done"))
    with pytest.raises(PySpyError, match="did not finish in time"):
        telemetry.pyspy_dump(timeout=3.0)
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), LIMIT_S)


def test_a_failed_dump_is_retried(stand_in: Any, tmp_path: Path) -> None:
    body = f"""
if mkdir {tmp_path}/first 2> /dev/null; then echo "Error: torn" >&2; exit 1; fi
case "$*" in *--nonblocking*) ;; *) echo "Error: it was stopped" >&2; exit 1 ;; esac
echo '[]'"""
    dump = stand_in(program_of(tmp_path, body)).pyspy_dump(timeout=LIMIT_S)
    assert (dump.procs, dump.failed) == (("0.0",), ())


def test_a_process_that_dies_during_a_dump_does_not_affect_the_others(
    stand_in: Any, tmp_path: Path
) -> None:
    body = f"""
if [ "$4" = "$(cat {tmp_path}/victim)" ]; then
    kill -9 $4
    # The first thread is a zombie before the others have exited and their files are closed.
    is_over() {{ grep -q '^State:.Z' /proc/$4/status && [ $(ls /proc/$4/task | wc -l) = 1 ]; }}
    while [ -e /proc/$4/maps ] && ! is_over "$@"; do sleep 0.02; done
    echo "Error: No such process" >&2; exit 1
fi
echo '[]'"""
    telemetry = stand_in(program_of(tmp_path, body))
    procs = this_host().spawn_procs(name="mortal")
    actor: Any = procs.spawn("stuck", Stuck)
    (tmp_path / "victim").write_text(str(actor.pid.call_one().get(LIMIT_S)))
    spinning = actor.spin.call_one(600.0)
    dump = telemetry.pyspy_dump(timeout=LIMIT_S)
    assert "0.0" in dump.procs
    (failure,) = dump.failed
    assert failure.cause == "it has exited"
    assert spinning.exception(LIMIT_S) is not None
    procs.stop().get(LIMIT_S)


def test_a_flame_graph_contains_the_running_code(team: Team, tmp_path: Path) -> None:
    spinning = team.actors.slice(gpus=0).spin.call_one(600.0)
    path = tmp_path / "out.svg"
    graph = team.telemetry.flame_graph(team.names[0], seconds=2, path=path)
    rows = graph.table.to_pylist()
    assert {row["proc"] for row in rows} == {team.names[0]}
    assert sum(row["samples"] for row in rows if "Stuck.spin" in row["stack"]) > 0
    assert path.read_text() == graph.svg
    assert graph.svg.rstrip().endswith("</svg>")
    assert f"{team.names[0]};" in graph.folded()
    spinning.cancel()


def test_flame_graphs_of_several_processes_are_merged(team: Team, tmp_path: Path) -> None:
    graph = team.telemetry.flame_graph([*team.names, "0.999"], seconds=1, idle=True, path=tmp_path)
    assert set(graph.table.column("proc").to_pylist()) == set(team.names)
    assert sorted(os.listdir(tmp_path)) == sorted(f"{name}.svg" for name in team.names)
    assert [one.proc for one in graph.failed] == ["0.999"]
    for seconds in (0, 301):
        with pytest.raises(ValueError, match="above 0 and up to 300"):
            team.telemetry.flame_graph("0.0", seconds=seconds)


def test_a_recording_stops_when_telemetry_closes(stand_in: Any, tmp_path: Path) -> None:
    telemetry = stand_in(program_of(tmp_path, f"echo $$ > {tmp_path}/pid\nexec sleep 600"))
    (host,) = telemetry._started().hosts.call_one().get(LIMIT_S)
    options = FlameOptions(300.0, 100, False, False)
    recording = host.rows.record_stacks.call_one("0.0", options)
    pid = int(wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    telemetry.close()
    assert recording.exception(LIMIT_S) is not None
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), LIMIT_S)


def test_a_cancelled_recording_stops(stand_in: Any, tmp_path: Path) -> None:
    telemetry = stand_in(program_of(tmp_path, f"echo $$ > {tmp_path}/pid\nexec sleep 600"))
    (host,) = telemetry._started().hosts.call_one().get(LIMIT_S)
    options = FlameOptions(300.0, 100, False, False)
    recording = host.rows.record_stacks.call_one("0.0", options)
    pid = int(wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    recording.cancel()
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), LIMIT_S)


def test_a_recording_stops_when_its_client_disconnects(stand_in: Any, tmp_path: Path) -> None:
    telemetry = stand_in(program_of(tmp_path, f"echo $$ > {tmp_path}/pid\nexec sleep 600"))
    with telemetry.serve() as serving:
        client = HTTPConnection(urlsplit(serving.url).netloc, timeout=LIMIT_S)
        said = json.dumps({"proc": "0.0", "seconds": 300})
        access = {"Authorization": f"Bearer {serving.act_token}"}
        client.request("POST", "/pyspy/flame", said, access)
        path = tmp_path / "pid"
        pid = int(wait_until(lambda: path.exists() and path.read_text(), LIMIT_S))
        assert os.path.exists(f"/proc/{pid}")
        client.close()
        wait_until(lambda: not os.path.exists(f"/proc/{pid}"), LIMIT_S)
