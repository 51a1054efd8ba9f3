"""Queries are aborted when no client waits for them; rows are returned as hosts reply."""

from __future__ import annotations

import pickle
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from recorded_actors import LIMIT_S, Worker
from recorded_program import config
from shards import HostRows

from mesh_core.testing import LocalProcs, proc_pid, wait_until
from mesh_telemetry import QueryError, Telemetry, TelemetryError
from mesh_telemetry._query.deadline import Cancellation
from mesh_telemetry._query.engine import run_fragment, run_until
from mesh_telemetry._query.fragment import Fragment, FragmentReply, QueriedHost
from mesh_telemetry._query.query import Query, QueryLimits

ENDLESS = "SELECT sum(value % 7) AS s FROM generate_series(1, 1000000000000000)"
TABLES = {"t": pa.table({"x": list(range(100))})}
SCHEMAS = {"t": TABLES["t"].schema}


def endless(deadline_s: float = 600.0) -> Fragment:
    return Fragment(ENDLESS, (), None, 10, 1 << 28, deadline_s)


def is_computing() -> bool:
    """Return whether any thread is in the query engine."""
    tops = sys._current_frames().values()
    return any(
        frame.f_code is run_until.__code__ for top in tops for frame, _ in traceback.walk_stack(top)
    )


def test_a_cancelled_fragment_stops() -> None:
    cancellation = Cancellation()

    def cancel() -> None:
        wait_until(is_computing, LIMIT_S)
        cancellation.cancel()

    threading.Thread(target=cancel).start()
    with pytest.raises(TelemetryError, match="was cancelled"):
        run_fragment(endless(), HostRows(TABLES), cancellation)
    wait_until(lambda: not is_computing(), LIMIT_S)


def test_a_fragment_stops_at_its_deadline() -> None:
    with pytest.raises(TelemetryError, match="not finished after"):
        run_fragment(endless(0.2), HostRows(TABLES))
    wait_until(lambda: not is_computing(), LIMIT_S)


def children(pid: int) -> list[int]:
    """Return all descendants of a process."""
    found = []
    # A process that has exited has none.
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += [int(one) for one in (thread / "children").read_text().split()]
    return [*found, *(inner for one in found for inner in children(one))]


def ticks(pid: int) -> int:
    """Return the CPU time of a process in ticks."""
    said = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(said[11]) + int(said[12])


def test_the_process_of_a_query_is_killed_when_the_call_is_cancelled(place: Path) -> None:
    with Telemetry(config(place)) as telemetry:
        telemetry.query("select 1", timeout=LIMIT_S)
        (handle,) = telemetry._started().hosts.call_one().get(LIMIT_S)
        assert handle.rows is not None
        pid = proc_pid(handle.rows)
        begun = {one: ticks(one) for one in children(pid)}
        call = handle.rows.run.call_one(pickle.dumps(endless()), 600.0)
        (busy,) = wait_until(
            lambda: [one for one in children(pid) if ticks(one) > begun.get(one, 0) + 20], LIMIT_S
        )
        call.cancel()
        wait_until(lambda: busy not in children(pid), LIMIT_S)
        assert telemetry.query("select 1 as one", timeout=LIMIT_S).table.num_rows == 1


class Slow:
    """Two hosts, one of which replies immediately and the other one on request."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.is_closed = False

    def __call__(self, fragment: Fragment) -> Slow:
        self._fragment = fragment
        return self

    def __iter__(self) -> Iterator[QueriedHost | FragmentReply]:
        yield QueriedHost("a")
        yield QueriedHost("b")
        yield FragmentReply("a", run_fragment(self._fragment, HostRows(TABLES)), None)
        if self.release.wait(LIMIT_S) and not self.is_closed:
            yield FragmentReply("b", run_fragment(self._fragment, HostRows(TABLES)), None)

    def close(self) -> None:
        self.is_closed = True
        self.release.set()


def prompt() -> Slow:
    """Return hosts that reply immediately."""
    hosts = Slow()
    hosts.release.set()
    return hosts


def test_rows_are_returned_before_the_last_host_has_replied() -> None:
    hosts = Slow()
    stream = Query("select x + 1 as y from t where x >= 90", None, SCHEMAS).stream(hosts)
    assert next(stream).to_pydict() == {"y": list(range(91, 101))}
    with pytest.raises(TelemetryError, match="read to the end"):
        _ = stream.coverage
    hosts.release.set()
    assert sum(batch.num_rows for batch in stream) == 10
    assert stream.coverage.replied == ("a", "b")
    assert stream.schema.names == ["y"]


def test_a_closed_stream_cancels_the_queries_of_the_remaining_hosts() -> None:
    for sql, is_left in [("select x from t", True), ("select x from t limit 30", False)]:
        hosts = Slow()
        with Query(sql, None, SCHEMAS).stream(hosts) as stream:
            assert next(stream).num_rows == (100 if is_left else 30)
            if not is_left:
                assert list(stream) == []
        assert hosts.is_closed


def test_an_unresponsive_host_is_reported() -> None:
    answer = Query("select count(*) as n from t", None, SCHEMAS).run(Slow(), timeout_s=0.5)
    (failure,) = answer.coverage.failed
    assert (failure.host, failure.cause) == ("b", "it did not reply in time")
    stream = Query("select x from t", None, SCHEMAS).stream(Slow(), timeout_s=0.5)
    assert sum(batch.num_rows for batch in stream) == 100
    assert [one.host for one in stream.coverage.failed] == ["b"]


def test_the_final_step_of_a_query_runs_before_its_rows_are_streamed() -> None:
    for sql, wanted in [
        ("select count(*) as n from t", [{"n": 200}]),
        ("select x from t order by x desc limit 1", [{"x": 99}]),
        ("select x from t order by x limit 1 offset 2", [{"x": 1}]),
    ]:
        stream = Query(sql, None, SCHEMAS).stream(prompt())
        assert [row for batch in stream for row in batch.to_pylist()] == wanted


def test_a_result_over_the_memory_limit_is_refused() -> None:
    limits = QueryLimits(memory_max_bytes=1000)
    with pytest.raises(QueryError, match="exceed the memory limit"):
        Query("select x from t", None, SCHEMAS, limits).run(prompt())
    # The rows of one host fit, and only those are in memory at a time.
    stream = Query("select x from t", None, SCHEMAS, limits).stream(prompt())
    assert sum(batch.num_rows for batch in stream) == 200


def test_a_program_streams_its_rows(place: Path, local_procs: LocalProcs) -> None:
    with Telemetry(config(place)) as telemetry:
        worker: Any = local_procs(name="team").spawn("worker", Worker)
        worker.work.call_one(1).get(LIMIT_S)
        with telemetry.stream("select name from spans", timeout=LIMIT_S) as stream:
            names = [name for batch in stream for name in batch.column("name").to_pylist()]
        assert sorted(names) == ["inner", "outer"]
        assert stream.coverage.is_full
