"""The duration of SQL queries: over many messages, small tables, and stored stacks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from bench.drivers.telemetry_program import TelemetryDriver
from bench.record import Recorder
from bench.scale import QUICK, Scale

_WORKERS = 8
_ROWS = 1_000_000
_COUNT = "select count(*) as n from messages where rank < 6 and bytes <> {at}"
_SMALL = {
    "count": "select count(*) as n from actors",
    "filter": "select id, rank, full_name from actors where rank > 0 order by id limit 20",
    "join": "select m.given_name, count(*) as n from actors a join meshes m on a.mesh_id = m.id"
    " group by m.given_name order by n desc",
}
# A different query each time: its number is new and filters nothing out.
_NEW = (
    "select m.given_name, count(*) as n from actors a join meshes m on a.mesh_id = m.id"
    " where a.rank <> {at} + 1000 group by m.given_name order by n desc"
)
_STACKS = {
    "count": "select count(*) as n from pyspy_frames where line <> {at} + 5000",
    "filter": "select name, filename, line from pyspy_frames"
    " where thread_id = 7 and frame_depth < 10 and line <> {at} + 5000",
    "group": "select name, count(*) as n from pyspy_frames where line <> {at} + 5000"
    " group by name order by n desc, name",
    "order": "select dump_id, thread_id, frame_depth, name, line from pyspy_frames"
    " where line <> {at} + 5000 order by line desc, dump_id, thread_id, frame_depth limit 1000",
    # Measured last: the peer was observed not to reply to any query after it.
    "join": "select d.proc_ref, t.thread_name, f.name, count(*) as n, count(distinct v.repr) as m"
    " from pyspy_dumps d join pyspy_stack_traces t on t.dump_id = d.dump_id"
    " join pyspy_frames f on f.dump_id = t.dump_id and f.thread_id = t.thread_id"
    " join pyspy_local_variables v on v.dump_id = f.dump_id and v.thread_id = f.thread_id"
    " and v.frame_depth = f.frame_depth where f.line <> {at} + 5000"
    " group by d.proc_ref, t.thread_name, f.name order by n desc, t.thread_name, f.name limit 50",
}
_DUMPS, _THREADS, _FRAMES = 50, 20, 100


def small(driver: TelemetryDriver, scale: Scale, record: Recorder) -> None:
    """Query a program of four workers that has done little."""
    driver.start_recorded(4)
    for i in range(200):
        driver.call_all(i)
    _until(lambda: driver.rows("select count(*) as n from actors where rank = 3")[0]["n"] > 0)
    for shape, sql in _SMALL.items():
        _record_median(record, shape, lambda _, sql=sql: driver.query(sql), scale)
    _record_median(record, "new", lambda at: driver.query(_NEW.format(at=at)), scale)


def stacks(driver: TelemetryDriver, scale: Scale, record: Recorder) -> None:
    """Query stack dumps with a hundred thousand frames and as many local variables."""
    driver.start_recorded(1)
    dumps = 5 if scale is QUICK else _DUMPS
    for number in range(dumps):
        driver.store_dump(f"dump{number}", _dump(number))
    wanted = dumps * _THREADS * _FRAMES
    for table in ("pyspy_frames", "pyspy_local_variables"):
        _until(lambda t=table: driver.rows(f"select count(*) as n from {t}")[0]["n"] == wanted)
    for shape, sql in _STACKS.items():
        same, other = f"{shape}_same", f"{shape}_other"
        _record_median(record, same, lambda _, sql=sql: driver.query(sql.format(at=0)), scale, 30)
        _record_median(
            record, other, lambda at, sql=sql: driver.query(sql.format(at=at)), scale, 30
        )


def count(driver: TelemetryDriver, scale: Scale, record: Recorder) -> None:
    """Count some of a million rows in eight processes, and the same rows in one table."""
    import datafusion
    import pyarrow as pa

    driver.start_recorded(_WORKERS)
    each = (10_000 if scale is QUICK else _ROWS) // _WORKERS
    driver.broadcast(each)
    started = time.perf_counter()
    driver.query(_COUNT.format(at=0))
    record.value("first", (time.perf_counter() - started) * 1e3, "ms")
    # One rank at a time: all rows together exceed the limit of a result.
    parts = [
        driver.query(f"select * from messages where rank = {rank}").table
        for rank in range(_WORKERS)
    ]
    local = pa.concat_tables(parts).combine_chunks()
    record.value("rows", local.num_rows, "", asked=each * _WORKERS)
    session = datafusion.SessionContext()
    session.register_record_batches("messages", [local.to_batches(max_chunksize=1 << 16)])
    ours, theirs = [], []
    for at in range(1, 10 if scale is QUICK else 40):
        # A different query each time, so that no result is cached.
        sql = _COUNT.format(at=-at)
        started = time.perf_counter()
        answer = driver.query(sql)
        between = time.perf_counter()
        batches = session.sql(sql).collect()
        theirs.append(time.perf_counter() - between)
        ours.append(between - started)
        expected = batches[0].column(0)[0].as_py()
        got = answer.table.column("n")[0].as_py()
        assert got == expected, f"{got} rows, and {expected} in the table of the program"
    record.value("bytes", answer.coverage.bytes_shipped, "B")
    record.value("p50", statistics.median(ours) * 1e3, "ms")
    record.value("local", statistics.median(theirs) * 1e3, "ms")


def _dump(number: int) -> dict[str, Any]:
    """Return a dump in the format of py-spy in which every frame has a variable."""
    traces = [
        {
            "pid": 1000 + number,
            "thread_id": thread,
            "thread_name": f"thread {thread}",
            "os_thread_id": thread,
            "active": thread == 0,
            "owns_gil": thread == 0,
            "frames": [_frame(number, thread, depth) for depth in range(_FRAMES)],
        }
        for thread in range(_THREADS)
    ]
    return {
        "pid": 1000 + number, "binary": "/usr/bin/python3", "capture_mode": "python_only",
        "stack_traces": traces, "warnings": [],
    }  # fmt: skip


def _frame(number: int, thread: int, depth: int) -> dict[str, Any]:
    name = f"function{(thread * 7 + depth) % 211}"
    file = f"package/module{depth % 37}.py"
    line = (number * 31 + thread * 17 + depth * 13) % 997 + 1
    value = {"name": "x", "addr": 4096 + depth, "arg": depth % 2 == 0, "repr": str(line % 89)}
    return {
        "name": name, "filename": f"/srv/{file}", "module": None, "short_filename": file,
        "line": line, "locals": [value], "is_entry": depth == _FRAMES - 1,
    }  # fmt: skip


def _record_median(
    record: Recorder, metric: str, ask: Callable[[int], Any], scale: Scale, most: int = 100
) -> None:
    """Measure queries, each with a different number, until one fails."""
    n = 5 if scale is QUICK else most
    times: list[float] = []
    try:
        for at in range(1, n + n // 5 + 1):
            started = time.perf_counter()
            ask(at)
            times.append(time.perf_counter() - started)
    except OSError as error:
        record.left_out(f"{metric}, after {len(times)} of {n + n // 5} answers", str(error))
    # The first fifth is the warm-up.
    counted = times[n // 5 :] or times
    if counted:
        record.value(
            metric, statistics.median(counted) * 1e3, "ms", n=len(counted), least=min(counted) * 1e3
        )


def _until(is_so: Callable[[], bool], limit_s: float = 30.0) -> None:
    """Wait for rows, which may arrive later."""
    until = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > until:
            raise RuntimeError(f"not so after {limit_s:g} s: rows are missing")
        time.sleep(0.05)
