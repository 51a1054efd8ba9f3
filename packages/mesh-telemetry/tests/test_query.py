"""The data that is transferred for a query, its limits, and the coverage of its result."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from shards import HostRows, Shards, evenly, spread

from mesh_telemetry._errors import CoverageError, QueryError, TelemetryError
from mesh_telemetry._query.coverage import HostFailure
from mesh_telemetry._query.engine import run_fragment
from mesh_telemetry._query.fragment import Fragment, FragmentReply
from mesh_telemetry._query.query import Query, QueryLimits
from mesh_telemetry._query.query_text import read_query

HOSTS = 8
ROWS = 1_000_000


def answer(sql: str, shards: Shards, parameters: object = None, **options: object):  # noqa: ANN201
    schemas = next(iter(shards.hosts.values())).schemas
    return Query(sql, parameters, schemas).run(shards.ask, timeout_s=60, **options)


@pytest.fixture(scope="module")
def many() -> Shards:
    """Return a million rows on eight hosts, and a few related tables."""
    values = np.random.default_rng(7)
    messages = pa.table(
        {
            "id": np.arange(ROWS),
            "x": values.integers(0, 10, ROWS),
            "actor": values.integers(0, 5_000, ROWS),
            "timestamp_us": np.arange(ROWS),
        }
    )
    actors = pa.table({"id": np.arange(5_000), "name": [f"a{at}" for at in range(5_000)]})
    return evenly({"messages": messages, "actors": actors}, HOSTS)


@pytest.fixture
def few() -> Shards:
    """Return a hundred rows on four hosts."""
    table = pa.table(
        {
            "id": pa.array(range(100), pa.int64()),
            "name": [f"n{at % 5}" for at in range(100)],
            "timestamp_us": pa.array(range(100), pa.int64()),
        }
    )
    return spread({"t": table}, 4, random.Random(1))


@pytest.mark.parametrize(
    ("sql", "rows_max", "bytes_max"),
    [
        ("SELECT count(*) FROM messages WHERE x > 5", HOSTS, 10_000),
        ("SELECT sum(id), avg(x), min(id), max(actor) FROM messages", HOSTS, 10_000),
        ("SELECT x, count(*), avg(id) FROM messages GROUP BY x", 10 * HOSTS, 20_000),
        ("SELECT DISTINCT x FROM messages", 10 * HOSTS, 20_000),
        ("SELECT count(DISTINCT x) FROM messages", 10 * HOSTS, 20_000),
        ("SELECT avg(id) FILTER (WHERE x > 3) FROM messages", HOSTS, 10_000),
        ("SELECT * FROM messages ORDER BY id DESC LIMIT 5", 5 * HOSTS, 20_000),
        ("SELECT * FROM messages WHERE x > 3 LIMIT 5", 5 * HOSTS, 20_000),
        ("SELECT id FROM messages WHERE id = 77", 1, 10_000),
        ("WITH p AS (SELECT x, count(*) n FROM messages GROUP BY x)"
         " SELECT max(n) FROM p", 10 * HOSTS, 20_000),
        ("SELECT 'm' w, count(*) FROM messages UNION ALL SELECT 'a', count(*) FROM actors",
         2 * HOSTS, 20_000),
        ("SELECT m.id FROM messages m JOIN actors a ON m.actor = a.id WHERE a.name = 'a7'",
         500, 40_000),
        ("SELECT count(*) FROM messages WHERE actor IN (SELECT id FROM actors WHERE name = 'a7')",
         500, 40_000),
    ],
)  # fmt: skip
def test_hosts_send_no_more_than_the_result_needs(
    many: Shards, sql: str, rows_max: int, bytes_max: int
) -> None:
    coverage = answer(sql, many).coverage
    assert coverage.rows_shipped <= rows_max, coverage.shipped
    assert coverage.bytes_shipped <= bytes_max, coverage.shipped


def test_a_subquery_that_is_read_twice_is_sent_once(few: Shards) -> None:
    answer("WITH p AS (SELECT name, count(*) n FROM t GROUP BY name)"
           " SELECT a.name FROM p a JOIN p b ON a.n = b.n", few)  # fmt: skip
    assert len({fragment.sql for fragment in few.fragments}) == len(few.fragments)


def test_hosts_receive_the_earliest_time_of_the_requested_rows(few: Shards) -> None:
    answer("SELECT count(*) FROM t WHERE timestamp_us > 90 AND name = 'n1'", few)
    assert all(host.since == [("t", 90)] for host in few.hosts.values())


def test_a_parameter_never_becomes_sql(few: Shards) -> None:
    evil = "n1' OR '1' = '1"
    for sql, parameters in [
        ("SELECT count(*) AS n FROM t WHERE name = $1", [evil]),
        ("SELECT count(*) AS n FROM t WHERE name = ?", [evil]),
        ("SELECT count(*) AS n FROM t WHERE name = $name", {"name": evil}),
    ]:
        assert answer(sql, few, parameters).table.to_pylist() == [{"n": 0}]


def test_a_parameter_keeps_its_type(few: Shards) -> None:
    sql = "SELECT count(*) AS n FROM t WHERE id < $1 AND name = $2"
    assert answer(sql, few, [10, "n1"]).table.to_pylist() == [{"n": 2}]


@pytest.mark.parametrize(
    ("sql", "parameters", "text"),
    [
        ("SELECT * FROM nowhere", None, "no table nowhere: the tables are t"),
        ("SELECT nothing FROM t", None, "No field named nothing"),
        ("SELEC 1", None, "correct the query"),
        ("", None, "the query is empty"),
        ("SELECT ?", [], r"1 placeholders \? but 0 parameters"),
        ("SELECT $1", [object()], "no SQL type"),
        ("SELECT $1", "text", "pass a list"),
        ("DELETE FROM t", None, "only read queries"),
        ("INSERT INTO t VALUES (1, 'a', 1)", None, "only read queries"),
        ("CREATE TABLE z AS SELECT 1", None, "only read queries"),
        ("DROP TABLE t", None, "only read queries"),
        ("SET datafusion.execution.batch_size = 1", None, "only read queries"),
        ("COPY t TO '/tmp/stolen.csv'", None, "only read queries"),
        ("CREATE EXTERNAL TABLE z STORED AS CSV LOCATION '/etc/passwd'", None, "only read queries"),
        ("SELECT * FROM '/etc/passwd'", None, "no table"),
        ("SELECT 1; SELECT 2", None, "correct the query"),
        ("SELECT 1 AS OF 'yesterday'", None, "is not a time"),
    ],
)
def test_the_error_of_an_invalid_query_says_why(
    few: Shards, sql: str, parameters: object, text: str
) -> None:
    with pytest.raises(QueryError, match=text):
        answer(sql, few, parameters)
    assert not few.fragments


def test_a_failure_on_the_rows_is_an_error_of_the_query(few: Shards) -> None:
    with pytest.raises(QueryError, match="Divide by zero"):
        answer("SELECT id / (id - id) FROM t", few)


def test_too_many_rows_are_not_sent(few: Shards) -> None:
    schemas = next(iter(few.hosts.values())).schemas
    query = Query("SELECT * FROM t", None, schemas, QueryLimits(rows_max=5))
    with pytest.raises(QueryError, match="more than 5 rows to send: filter, aggregate"):
        query.run(few.ask)


def test_a_host_does_not_exceed_its_memory_limit(many: Shards) -> None:
    limits = QueryLimits(host_memory_max_bytes=100_000)
    schemas = many.hosts["host0"].schemas
    query = Query("SELECT id, count(*) FROM messages GROUP BY id", None, schemas, limits)
    with pytest.raises(QueryError, match="wants too much of a host"):
        query.run(many.ask)


def test_rows_after_the_time_of_a_query_are_not_visible(few: Shards) -> None:
    for sql, until_us in [
        ("SELECT count(*) AS n FROM t", 9),
        ("SELECT count(*) AS n FROM t AS OF 9", None),
        ("SELECT count(*) AS n FROM t AS OF '1970-01-01T00:00:00.000009'", 50),
        ("SELECT count(*) AS n FROM t AS OF 9 WHERE id >= 0", 50),
        ("SELECT count(*) AS n FROM t AS OF TIMESTAMP '1970-01-01T00:00:00.000009' x", None),
        ("SELECT count(*) AS n FROM t FOR SYSTEM_TIME AS OF 9 WHERE id >= 0;", None),
    ]:
        assert answer(sql, few, until_us=until_us).table.to_pylist() == [{"n": 10}], sql


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 'x AS OF 5'",
        "SELECT id AS of FROM t",
        'SELECT 1 AS "AS OF 5"',
        "SELECT 1 -- AS OF 5",
        "SELECT 1 /* /* AS OF 5 */ AS OF 6 */",
        "SELECT $$ AS OF 5 $$",
        "SELECT E'it\\' AS OF 5'",
        "SELECT '? $1'",
    ],
)
def test_text_that_only_looks_like_an_as_of_clause_is_unchanged(sql: str) -> None:
    text = read_query(sql)
    assert (text.as_of_us, text.marks) == (None, 0)
    assert sql.startswith(text.sql)


def test_explain_says_what_is_sent_and_queries_no_host(few: Shards) -> None:
    table = answer("EXPLAIN SELECT name, count(*) FROM t GROUP BY name", few).table
    assert table.column("step").to_pylist() == [
        "every host sends a row for each group of t",
        "finished in the querying process",
    ]
    assert not few.fragments


@pytest.mark.parametrize("sql", ["SHOW TABLES", "DESCRIBE t", "SELECT 1 + 1 AS two"])
def test_a_query_that_reads_no_rows_is_not_sent_to_hosts(few: Shards, sql: str) -> None:
    assert answer(sql, few).table.num_rows
    assert not few.fragments


def test_now_returns_the_same_time_throughout_a_query(few: Shards) -> None:
    sql = "SELECT count(*) AS n FROM t WHERE now() = (SELECT max(now()) FROM t)"
    assert answer(sql, few).table.to_pylist() == [{"n": 100}]


def test_a_query_without_hosts_sees_no_rows() -> None:
    schemas = {"t": pa.schema([("x", pa.int64())])}
    found = Query("SELECT count(*) AS n, sum(x) AS s FROM t", None, schemas).run(lambda _: [])
    assert found.table.to_pylist() == [{"n": 0, "s": None}]
    assert found.coverage.queried == ()


def _failing(shards: Shards, broken: set[str]):  # noqa: ANN202
    def ask(fragment: Fragment) -> Iterator[FragmentReply]:
        for each in shards.ask(fragment):
            is_broken = each.host in broken
            yield FragmentReply(each.host, None, "proc died") if is_broken else each

    return ask


def test_a_failed_host_is_reported_and_the_others_count(few: Shards) -> None:
    schemas = few.hosts["host0"].schemas
    found = Query("SELECT id FROM t", None, schemas).run(_failing(few, {"host1"}))
    assert found.coverage.queried == ("host0", "host1", "host2", "host3")
    assert found.coverage.replied == ("host0", "host2", "host3")
    assert found.coverage.failed == (HostFailure("host1", "proc died"),)
    assert not found.coverage.is_full


def test_require_full_raises_an_error_if_a_host_is_missing(few: Shards) -> None:
    query = Query("SELECT id FROM t", None, few.hosts["host0"].schemas)
    with pytest.raises(CoverageError, match="1 of 4 hosts did not reply"):
        query.run(_failing(few, {"host1"}), require_full=True)


def test_a_query_fails_if_no_host_replies(few: Shards) -> None:
    query = Query("SELECT count(*) FROM t", None, few.hosts["host0"].schemas)
    with pytest.raises(CoverageError, match="no host replied") as caught:
        query.run(_failing(few, set(few.hosts)))
    assert len(caught.value.failed) == 4


def test_an_unreadable_reply_is_a_failure_of_its_host(few: Shards) -> None:
    def ask(fragment: Fragment) -> Iterator[FragmentReply]:
        for each in few.ask(fragment):
            yield FragmentReply(each.host, b"rubbish", None) if each.host == "host2" else each

    found = Query("SELECT id FROM t", None, few.hosts["host0"].schemas).run(ask)
    assert [each.host for each in found.coverage.failed] == ["host2"]


def test_a_late_host_does_not_delay_the_others(few: Shards) -> None:
    release = threading.Event()

    def ask(fragment: Fragment) -> Iterator[FragmentReply]:
        yield from few.ask(fragment)
        release.wait(30)

    started = time.monotonic()
    try:
        found = Query("SELECT id FROM t", None, few.hosts["host0"].schemas).run(ask, timeout_s=3.0)
    finally:
        release.set()
    assert time.monotonic() - started < 20
    assert found.table.num_rows == 100
    assert not found.coverage.is_full


def test_a_host_stops_at_its_deadline() -> None:
    class Slow(HostRows):
        def batches(
            self, table: str, since_us: int | None, until_us: int | None
        ) -> list[pa.RecordBatch]:
            released.wait(30)
            return super().batches(table, since_us, until_us)

    released = threading.Event()
    rows = Slow({"t": pa.table({"x": [1]})})
    fragment = Fragment("SELECT x FROM t", ("t",), None, 10, 1 << 26, 0.2)
    try:
        with pytest.raises(TelemetryError, match="not finished after"):
            run_fragment(fragment, rows)
    finally:
        released.set()


def test_a_host_runs_only_read_queries() -> None:
    rows = HostRows({"t": pa.table({"x": [1]})})
    for sql in ["DROP TABLE t", "COPY t TO '/tmp/stolen.csv'", "SET a = 1"]:
        with pytest.raises(QueryError, match="only read queries"):
            run_fragment(Fragment(sql, ("t",), None, 10, 1 << 26, 5.0), rows)


def test_a_query_can_run_only_once(few: Shards) -> None:
    query = Query("SELECT 1", None, few.hosts["host0"].schemas)
    query.run(few.ask)
    with pytest.raises(TelemetryError, match="create a new one"):
        query.run(few.ask)


def test_an_error_of_the_request_to_the_hosts_is_raised(few: Shards) -> None:
    def ask(fragment: Fragment) -> Iterator[FragmentReply]:
        raise RuntimeError("no mesh")

    with pytest.raises(RuntimeError, match="no mesh"):
        Query("SELECT id FROM t", None, few.hosts["host0"].schemas).run(ask)


def test_a_result_over_the_memory_limit_is_refused(many: Shards) -> None:
    limits = QueryLimits(memory_max_bytes=1_000_000)
    for sql in [
        "SELECT id, x FROM messages",
        "SELECT a.id FROM actors a, actors b WHERE a.id < 2000",
    ]:
        query = Query(sql, None, many.hosts["host0"].schemas, limits)
        with pytest.raises(QueryError, match=r"memory limit|1000000 bytes|exhausted"):
            query.run(many.ask, timeout_s=60)
