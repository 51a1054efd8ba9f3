"""Rows of programs that have exited, normally or not, are queried without a running program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import pytest
from recorded_actors import LIMIT_S, Worker
from recorded_program import config, host_folders

from mesh_core.testing import LocalProcs, wait_until
from mesh_telemetry import Archive, QueryError, StorageError, Telemetry, TelemetryConfig

HERE = Path(__file__).parent

PROGRAM = """
import sys
from recorded_actors import Worker
from mesh_core import this_host
from mesh_telemetry import Telemetry, TelemetryConfig
telemetry = Telemetry(TelemetryConfig(directory=sys.argv[1], spill=sys.argv[2])).start()
workers = this_host().spawn_procs({"gpus": 2}, name="other").spawn("workers", Worker)
workers.work.call(1).get(60)
telemetry.query("select 1", timeout=60)
print("ready", flush=True)
words = sys.stdin.readline().split()
if words == ["close"]:
    telemetry.close()
"""


def run_program(place: Path, spill: Path, end: str) -> None:
    """Run another program with telemetry until it ends."""
    words = [sys.executable, "-c", PROGRAM, str(place), str(spill)]
    path = os.pathsep.join([str(HERE), *sys.path])
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        if end == "kill":
            program.kill()
        program.communicate(f"{end}\n", timeout=LIMIT_S)


def count(archive: Archive, table: str = "spans") -> int:
    answer = archive.query(f"select count(*) as n from {table}")
    assert answer.coverage.is_full, answer.coverage
    found: int = answer.table.to_pylist()[0]["n"]
    return found


@pytest.mark.parametrize("end", ["close", "return", "kill"])
def test_an_exited_program_can_be_queried(place: Path, tmp_path: Path, end: str) -> None:
    spill = tmp_path / "kept"
    run_program(place, spill, end)

    def is_there() -> bool:
        # Processes of a killed program exit a moment later.
        with Archive(spill) as archive:
            return count(archive) == 4 and not host_folders(place)

    wait_until(is_there, LIMIT_S)
    (run,) = Archive.runs(spill)
    assert "recorded_actors" in run.program
    assert abs(run.begin_us / 1e6 - time.time()) < 600
    assert (run.end_us is None) == (end == "kill")
    with Archive([spill]) as archive:
        names = archive.query("select name, count(*) as n from spans group by name order by name")
        assert names.table.to_pylist() == [{"name": "inner", "n": 2}, {"name": "outer", "n": 2}]
        early = archive.query("select * from spans", as_of=run.begin_us / 1e6 - 1)
        assert early.table.num_rows == 0
        with pytest.raises(QueryError, match="snapshot_s"):
            archive.query("select * from procs")
        with pytest.raises(QueryError, match="no table"):
            archive.query("select * from nowhere")
    if end == "close":
        assert not list(spill.rglob("*.seg"))
        query = f"select count(*) from read_parquet('{spill}/*/*/tables/spans/*.parquet')"
        assert duckdb.execute(query).fetchall() == [(4,)]


def test_the_next_program_converts_rows_of_a_killed_one_to_parquet(
    place: Path, tmp_path: Path
) -> None:
    spill = tmp_path / "kept"
    run_program(place, spill, "kill")

    def is_swept() -> bool:
        with Telemetry(config(place, spill=str(spill))) as telemetry:
            telemetry.query("select 1", timeout=LIMIT_S)
        return len(list(spill.glob("*/*/tables/spans/*.parquet"))) == 1

    wait_until(is_swept, LIMIT_S * 2)
    first = Archive.runs(spill)[0]
    with Archive(spill, first.name) as archive:
        assert count(archive) == 4
    # The latest run is queried if none is named.
    with Archive(spill) as archive:
        assert archive.run == Archive.runs(spill)[-1].name != first.name
        assert count(archive) == 0


def test_past_runs_can_be_queried_from_the_command_line(place: Path, tmp_path: Path) -> None:
    spill = tmp_path / "kept"
    run_program(place, spill, "close")
    (run,) = Archive.runs(spill)
    program = Path(sys.executable).with_name("mesh")
    words = [str(program), "query", "--json", "--past", str(spill)]
    sql = "select count(*) as n from spans"
    done = subprocess.run(
        [*words, "--run", run.name, sql], capture_output=True, text=True, timeout=60, check=False
    )
    assert json.loads(done.stdout)["rows"] == [{"n": 4}], done.stderr
    wrong = subprocess.run(
        [*words, "--run", "none", sql], capture_output=True, text=True, timeout=60, check=False
    )
    assert wrong.returncode == 1
    assert run.name in wrong.stdout


def test_a_folder_without_runs_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no rows"):
        Archive(tmp_path)
    with pytest.raises(StorageError, match="cannot read"):
        Archive.runs(tmp_path / "none")


def test_saved_rows_can_be_queried_later(
    place: Path, tmp_path: Path, local_procs: LocalProcs
) -> None:
    with Telemetry(config(place)) as telemetry:
        workers: Any = local_procs({"gpus": 2}, name="team").spawn("workers", Worker)
        workers.work.call(1).get(LIMIT_S)
        assert telemetry.save(tmp_path / "first", timeout=LIMIT_S).is_full
        workers.work.call(2).get(LIMIT_S)
        telemetry.save(tmp_path / "second", timeout=LIMIT_S)
    for name, wanted in [("first", 4), ("second", 8)]:
        with Archive(tmp_path / name) as archive:
            assert count(archive) == wanted
            assert count(archive, "actors") == 2
            procs = archive.query("select mesh, state from procs where mesh = 'team'").table
            assert len(procs) == 2
    # With several folders, the latest of all runs is queried.
    with Archive([tmp_path / "second", tmp_path / "first"]) as archive:
        assert count(archive) == 8


def test_live_tables_have_a_history_if_snapshots_are_recorded(
    place: Path, tmp_path: Path, local_procs: LocalProcs
) -> None:
    spill = tmp_path / "kept"
    with Telemetry(config(place, spill=str(spill), snapshot_s=0.2)) as telemetry:

        def procs(as_of: float) -> set[str]:
            sql = "select mesh from procs"
            answer = telemetry.query(sql, as_of=as_of, timeout=LIMIT_S)
            return set(answer.table.column("mesh").to_pylist())

        wait_until(lambda: list(spill.glob("*/*/tables/procs/*.parquet")), LIMIT_S)
        before = time.time()
        assert procs(before) == {"root"}
        local_procs(name="team")
        wait_until(lambda: "team" in procs(time.time()), LIMIT_S)
        assert procs(before) == {"root"}
        assert procs(before - 1000) == set()
    with Archive(spill) as archive:
        found = archive.query("select mesh from procs").table.column("mesh").to_pylist()
        assert "team" in found
        assert archive.query("select mesh from procs", as_of=before).table.num_rows == 1


def test_spill_options_without_a_folder_are_refused() -> None:
    for options in ({"spill_bytes": 1 << 30}, {"snapshot_s": 1.0}):
        with pytest.raises(ValueError, match="set it too"):
            TelemetryConfig(**options)
    with pytest.raises(ValueError, match="spill_bytes"):
        TelemetryConfig(spill="/x", spill_bytes=1)
    with pytest.raises(ValueError, match="snapshot_s"):
        TelemetryConfig(spill="/x", snapshot_s=0.0)
