"""Queries run in separate processes, whose resource use and crashes affect nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from query_attacks import ENDLESS, GREEDY, UNENDING, children, rss_bytes, ticks
from recorded_actors import LIMIT_S
from recorded_program import config

from mesh_core.testing import kill_proc, proc_pid, wait_until
from mesh_telemetry import QueryError, Telemetry, TelemetryError
from mesh_telemetry._serve import served_queries
from mesh_telemetry._serve.serving import Serving

_GROWN_MAX = 64 << 20


@pytest.fixture(scope="module")
def telemetry() -> Iterator[Telemetry]:
    with (
        tempfile.TemporaryDirectory(prefix="tel-", dir="/dev/shm") as place,
        Telemetry(config(Path(place))) as started,
    ):
        started.query("select 1", timeout=LIMIT_S)
        yield started


@pytest.fixture(scope="module")
def serving(telemetry: Telemetry) -> Iterator[Serving]:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as runtime:
        patch.setenv("XDG_RUNTIME_DIR", runtime)
        with telemetry.serve() as opened:
            yield opened


def asked(serving: Serving, sql: str) -> tuple[int, str]:
    """Send a query over HTTP; return the status and the text of the response."""
    headers = {"Authorization": f"Bearer {serving.token}"}
    body = json.dumps({"sql": sql}).encode()
    request = urllib.request.Request(f"{serving.url}/query", body, headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=LIMIT_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())["error"]["message"]


def telemetry_pid(telemetry: Telemetry) -> int:
    (handle,) = telemetry._started().hosts.call_one().get(LIMIT_S)
    assert handle.rows is not None
    return proc_pid(handle.rows)


def query_processes(telemetry: Telemetry) -> list[int]:
    """Return the query processes of the only host, which are children of the template process."""
    return children(children(telemetry_pid(telemetry))[0])


def busy_process(telemetry: Telemetry, before: dict[int, int]) -> int:
    """Return the query process that has used CPU time since the previous measurement."""

    def found() -> list[int]:
        return [one for one in query_processes(telemetry) if ticks(one) > before.get(one, 0) + 10]

    (busy,) = wait_until(found, LIMIT_S)
    return busy


def all_ticks(telemetry: Telemetry) -> dict[int, int]:
    return {one: ticks(one) for one in query_processes(telemetry)}


@pytest.mark.parametrize("attack", GREEDY)
def test_a_greedy_http_query_fails_without_using_memory_of_the_program(
    serving: Serving, attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine a query may reach its deadline before its limit.
    monkeypatch.setattr(served_queries, "_TIMEOUT_S", LIMIT_S)
    sql, wanted = GREEDY[attack]
    assert asked(serving, "select 1 as one")[0] == 200
    before = rss_bytes(os.getpid())
    status, text = asked(serving, sql)
    assert status in (400, 500, 502)
    assert wanted in text
    assert rss_bytes(os.getpid()) - before < _GROWN_MAX
    assert asked(serving, "select count(*) as n from procs")[0] == 200


def test_a_greedy_query_of_the_program_itself_gets_an_error(telemetry: Telemetry) -> None:
    before = rss_bytes(os.getpid())
    with pytest.raises(QueryError, match="1536 MiB of memory"):
        telemetry.query(GREEDY["a list"][0], timeout=LIMIT_S)
    for sql in (ENDLESS, *UNENDING.values()):
        with pytest.raises(TelemetryError, match=r"not finished after 0\.5 s"):
            telemetry.query(sql, timeout=0.5)
    assert rss_bytes(os.getpid()) - before < _GROWN_MAX


def test_a_prepared_statement_is_planned_outside_of_the_program(serving: Serving) -> None:
    dbapi = pytest.importorskip("adbc_driver_flightsql.dbapi")
    options = {"adbc.flight.sql.authorization_header": f"Bearer {serving.token}"}
    with (
        dbapi.connect(serving.flight_url, db_kwargs=options, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("select ? as one", (1,))
        assert cursor.fetch_arrow_table().to_pylist() == [{"one": 1}]
        with pytest.raises(Exception, match="SIGSEGV"):
            cursor.execute(GREEDY["a long sum"][0])
        cursor.execute(GREEDY["a list"][0])
        with pytest.raises(Exception, match="MiB of memory"):
            cursor.fetch_arrow_table()


def test_other_queries_are_served_while_an_endless_query_runs(
    telemetry: Telemetry, serving: Serving
) -> None:
    before = all_ticks(telemetry)
    endless = hanging(serving)
    busy = busy_process(telemetry, before)
    assert asked(serving, "select count(*) as n from procs")[0] == 200
    assert telemetry.query("select 1 as one").table.num_rows == 1
    assert busy in query_processes(telemetry)
    endless.close()


def test_other_programs_do_not_block_queries_of_the_program_itself(
    telemetry: Telemetry, serving: Serving
) -> None:
    """While other programs use all slots for endless queries, the program's own query is served."""
    connections = [hanging(serving) for _ in range(8)]
    try:
        assert telemetry.query("select 1 as one").table.num_rows == 1
    finally:
        for connection in connections:
            connection.close()
    # Queries end with their clients.
    wait_until(lambda: asked(serving, "select 1 as one")[0] == 200, LIMIT_S)


def hanging(serving: Serving) -> HTTPConnection:
    """Return a connection on which an endless query is running."""
    connection = HTTPConnection("127.0.0.1", int(serving.url.rpartition(":")[2]), timeout=LIMIT_S)
    body = json.dumps({"sql": ENDLESS}).encode()
    connection.request("POST", "/query", body, {"Authorization": f"Bearer {serving.token}"})
    return connection


def test_a_query_is_killed_when_its_caller_disconnects(
    telemetry: Telemetry, serving: Serving
) -> None:
    before = all_ticks(telemetry)
    connection = hanging(serving)
    busy = busy_process(telemetry, before)
    connection.close()
    wait_until(lambda: busy not in query_processes(telemetry), 2.0)


def test_a_flight_query_is_killed_when_its_caller_cancels(
    telemetry: Telemetry, serving: Serving
) -> None:
    dbapi = pytest.importorskip("adbc_driver_flightsql.dbapi")
    options = {"adbc.flight.sql.authorization_header": f"Bearer {serving.token}"}
    before = all_ticks(telemetry)
    with (
        dbapi.connect(serving.flight_url, db_kwargs=options, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):

        def fetch() -> None:
            with pytest.raises(Exception, match=r"(?i)cancel"):
                cursor.execute(ENDLESS).fetch_arrow_table()

        asking = threading.Thread(target=fetch)
        asking.start()
        busy = busy_process(telemetry, before)
        cursor.adbc_cancel()
        asking.join(LIMIT_S)
    wait_until(lambda: busy not in query_processes(telemetry), LIMIT_S)


def test_a_query_fails_if_its_process_is_killed_and_the_next_one_succeeds(
    telemetry: Telemetry,
) -> None:
    before = all_ticks(telemetry)
    errors: list[BaseException] = []

    def ask() -> None:
        with pytest.raises(TelemetryError, match="was killed") as raised:
            telemetry.query(ENDLESS, timeout=LIMIT_S)
        errors.append(raised.value)

    asking = threading.Thread(target=ask)
    asking.start()
    os.kill(busy_process(telemetry, before), signal.SIGKILL)
    asking.join(LIMIT_S)
    assert errors
    assert telemetry.query("select 1 as one", timeout=LIMIT_S).table.num_rows == 1


def test_a_killed_template_process_is_restarted(telemetry: Telemetry) -> None:
    template, *forks = children(telemetry_pid(telemetry))
    os.kill(template, signal.SIGKILL)
    wait_until(lambda: not any(os.path.exists(f"/proc/{one}") for one in forks), LIMIT_S)
    assert telemetry.query("select 1 as one", timeout=LIMIT_S).table.num_rows == 1


def test_the_template_process_has_one_thread_so_that_it_can_fork(telemetry: Telemetry) -> None:
    telemetry.query("select 1", timeout=LIMIT_S)
    template = children(telemetry_pid(telemetry))[0]
    assert len(list(Path(f"/proc/{template}/task").iterdir())) == 1


def test_all_query_processes_exit_with_telemetry(place: Path) -> None:
    with Telemetry(config(place)) as telemetry:
        telemetry.query("select 1", timeout=LIMIT_S)
        found = children(telemetry_pid(telemetry))
        assert len(found) == 2
    assert not any(os.path.exists(f"/proc/{one}") for one in found)


def test_all_query_processes_exit_when_the_telemetry_process_is_killed(place: Path) -> None:
    with Telemetry(config(place)) as telemetry:
        telemetry.query("select 1", timeout=LIMIT_S)
        (handle,) = telemetry._started().hosts.call_one().get(LIMIT_S)
        assert handle.rows is not None
        found = children(proc_pid(handle.rows))
        kill_proc(handle.rows, 0, signal.SIGKILL)
        wait_until(lambda: not any(os.path.exists(f"/proc/{one}") for one in found), LIMIT_S)


def test_a_killed_process_leaves_no_links_to_files(telemetry: Telemetry) -> None:
    with pytest.raises(TelemetryError, match="not finished"):
        telemetry.query(ENDLESS, timeout=0.5)
    (scratch,) = Path(str(telemetry.config.directory)).glob("**/queries")
    alive = {str(one) for one in query_processes(telemetry)}
    wait_until(lambda: {one.name for one in scratch.iterdir()} <= alive, LIMIT_S)


def test_a_program_that_queries_does_not_load_the_engine(place: Path) -> None:
    script = """
import sys
from mesh_telemetry import Telemetry, TelemetryConfig

with Telemetry(TelemetryConfig(directory=sys.argv[1])) as telemetry, telemetry.serve():
    assert telemetry.query("select 1 as one").table.num_rows == 1
    print("datafusion" in sys.modules)
"""
    asking = [sys.executable, "-c", script, str(place)]
    done = subprocess.run(asking, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout == "False\n"


def test_a_query_process_leaves_no_truncated_bytecode(tmp_path: Path) -> None:
    code = (
        "from mesh_telemetry._query_process.limits import limit_files; limit_files()\n"
        "import _pydecimal"
    )
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=LIMIT_S)
    again = [sys.executable, "-c", "import _pydecimal"]
    subprocess.run(again, env=env, check=True, timeout=LIMIT_S)
