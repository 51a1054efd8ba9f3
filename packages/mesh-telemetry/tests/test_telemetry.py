"""Queries about a program from itself, from other programs, and together with a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from mesh_core import Actor, endpoint, this_host
from mesh_core.testing import kill_proc
from mesh_telemetry import QueryError, Telemetry, TelemetryConfig, TelemetryError


class Pupil(Actor):
    @endpoint
    def learn(self, number: int) -> int:
        return number


@pytest.fixture
def telemetry(place: Path) -> Iterator[Telemetry]:
    with Telemetry(TelemetryConfig(directory=str(place))) as started:
        yield started


def rows(telemetry: Telemetry, sql: str, **kwargs: Any) -> list[dict[str, Any]]:
    answer = telemetry.query(sql, timeout=30, **kwargs)
    assert answer.coverage.is_full, answer.coverage
    found: list[dict[str, Any]] = answer.table.to_pylist()
    return found


def test_a_program_queries_itself(telemetry: Telemetry) -> None:
    procs = this_host().spawn_procs({"n": 2}, name="school")
    pupils = procs.spawn("pupils", Pupil)
    for number in range(5):
        pupils.learn.call(number).get()
    sql = """
        select a.rank, count(distinct m.id) as calls from sent_messages s
        join messages m on m.id = s.id join actors a on a.id = m.to_actor_id
        where a.display_name = $1 group by a.rank order by a.rank
    """
    assert [row["rank"] for row in rows(telemetry, sql, params=["pupils"])] == [0, 1]
    sql = "select mesh, rank, pid from procs where mesh = $mesh order by rank"
    found = rows(telemetry, sql, params={"mesh": "school"})
    assert [(row["mesh"], row["rank"]) for row in found] == [("school", 0), ("school", 1)]
    assert all(os.path.exists(f"/proc/{row['pid']}") for row in found)
    procs.stop().get()


def test_the_failure_of_a_killed_process_is_still_reported(telemetry: Telemetry) -> None:
    procs = this_host().spawn_procs({"n": 2}, name="mortal")
    pupils = procs.spawn("pupils", Pupil)
    pupils.learn.call(1).get()
    before = time.time()
    kill_proc(procs, 1)
    with pytest.raises(Exception, match="SIGKILL"):
        pupils.learn.call(2).get()
    (failure,) = rows(telemetry, "select mesh, rank, signal from failures")
    assert failure == {"mesh": "mortal", "rank": 1, "signal": 9}
    assert rows(telemetry, "select * from failures", as_of=before) == []
    procs.replace(1)
    procs.stop().get()


def test_the_error_of_an_invalid_query_says_what_to_do(telemetry: Telemetry) -> None:
    with pytest.raises(QueryError, match="message_status_events"):
        telemetry.query("select * from mesages")
    with pytest.raises(QueryError):
        telemetry.query("drop table messages")
    with pytest.raises(ValueError, match="zone"):
        telemetry.query("select 1", as_of=datetime(2026, 1, 1))


def test_a_query_requires_started_telemetry() -> None:
    with pytest.raises(TelemetryError, match="start"):
        Telemetry().query("select 1")


def post(url: str, token: str, sql: str) -> dict[str, Any]:
    asked = urllib.request.Request(
        f"{url}/query", json.dumps({"sql": sql}).encode(), {"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(asked, timeout=30) as reply:
        found: dict[str, Any] = json.load(reply)
        return found


def mesh_query(*words: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("mesh")
    return subprocess.run(
        [program, "query", *words], capture_output=True, text=True, timeout=100, check=False
    )


def test_other_programs_query_with_the_token(telemetry: Telemetry, tmp_path: Path) -> None:
    with telemetry.serve() as serving:
        found = post(serving.url, serving.token, "select count(*) as hosts from hosts")
        assert found["columns"] == ["hosts"]
        assert found["rows"] == [{"hosts": 1}]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            post(serving.url, "guessed", "select 1")
        pid = str(os.getpid())
        done = mesh_query("--json", "--pid", pid, "select count(*) as hosts from hosts")
        assert json.loads(done.stdout)["rows"] == [{"hosts": 1}], done.stderr
        locals_sql = "select count(*) as n from pyspy_local_variables"
        refused = mesh_query(locals_sql)
        assert refused.returncode == 1
        assert "mesh query --act" in refused.stderr
        shown = mesh_query("--act", "--json", locals_sql)
        assert json.loads(shown.stdout)["rows"] == [{"n": 0}], shown.stderr
        wrong = mesh_query("select * from nowhere")
        assert wrong.returncode == 1
        assert "nowhere" in wrong.stderr
    gone = mesh_query("select 1")
    assert gone.returncode == 1
    assert "serve()" in gone.stderr
    assert list(tmp_path.rglob("*.json")) == []


def test_a_flight_sql_driver_connects(telemetry: Telemetry) -> None:
    dbapi = pytest.importorskip("adbc_driver_flightsql.dbapi")
    with telemetry.serve() as serving:
        options = {"adbc.flight.sql.authorization_header": f"Bearer {serving.token}"}
        connection = dbapi.connect(serving.flight_url, db_kwargs=options, autocommit=True)
        with connection, connection.cursor() as cursor:
            cursor.execute("select count(*) as hosts from hosts")
            assert cursor.fetchall() == [(1,)]


def test_a_job_adds_telemetry_in_one_line(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = pytest.importorskip("mesh_jobs")
    monkeypatch.chdir(tmp_path)
    telemetry = Telemetry(TelemetryConfig(directory=str(place)))
    job = jobs.ProcessJob({"trainers": 2}).add_extensions(telemetry)
    try:
        procs = job.state(timeout=60).trainers.spawn_procs({"n": 1}, name="team")
        procs.spawn("pupils", Pupil).learn.call(1).get()
        found = rows(telemetry, "select host, rank from procs where mesh = 'team' order by rank")
        assert [row["rank"] for row in found] == [0, 1]
        assert len({row["host"] for row in found}) <= 2
    finally:
        job.kill()
