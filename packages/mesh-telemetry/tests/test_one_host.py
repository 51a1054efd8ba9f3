"""A single host computes the whole result, and reuses it if nothing has changed."""

from __future__ import annotations

import pyarrow as pa
import pytest
from shards import HostRows, Shards

from mesh_telemetry._errors import CoverageError, QueryError
from mesh_telemetry._query.coverage import QueryResult
from mesh_telemetry._query.fragment import FragmentReply
from mesh_telemetry._query.query import Query
from mesh_telemetry._query.query_plan import QueryPlans

TABLE = pa.table({"id": [1, 2, 3], "timestamp_us": [10, 20, 30]})


@pytest.fixture
def alone() -> Shards:
    other = pa.table({"id": [2, 3], "name": ["b", "c"]})
    return Shards({"host": HostRows({"t": TABLE, "other": other, "procs": other})})


def whole(shards: Shards, sql: str, parameters: object = None, **options: object) -> QueryResult:
    schemas = shards.hosts["host"].schemas
    query = Query(sql, parameters, schemas)  # type: ignore[arg-type]
    return query.run(shards.ask, timeout_s=60, is_one_host=True, **options)  # type: ignore[arg-type]


def test_a_join_is_one_query_and_only_its_rows_are_sent(alone: Shards) -> None:
    answer = whole(alone, "select name from t join other on t.id = other.id order by name")
    assert answer.table.to_pylist() == [{"name": "b"}, {"name": "c"}]
    assert len(alone.fragments) == 1
    (shipped,) = answer.coverage.shipped
    assert (shipped.table, shipped.rows) == ("t, other", 2)


def test_only_the_tables_that_are_read_are_requested(alone: Shards) -> None:
    whole(alone, "select count(*) as procs from t where 'other' <> 'procs'")
    (fragment,) = alone.fragments
    assert fragment.tables == ("t",)


def test_parameters_and_times_are_sent_with_the_query(alone: Shards) -> None:
    sql = "select id from t where timestamp_us > $1 as of '1970-01-01T00:00:00.000020'"
    assert whole(alone, sql, [10]).table.to_pylist() == [{"id": 2}]
    inner = "select id from t where id > (select min(id) from t where timestamp_us >= ?)"
    assert whole(alone, inner, [20]).table.to_pylist() == [{"id": 3}]


def test_a_query_that_reads_no_rows_is_not_sent_to_hosts(alone: Shards) -> None:
    names = whole(alone, "select table_name from information_schema.tables").table
    assert {"t", "other"} <= set(names.column("table_name").to_pylist())
    assert whole(alone, "select 1 as one").table.to_pylist() == [{"one": 1}]
    assert alone.fragments == []


def test_columns_with_the_same_name_are_both_returned(alone: Shards) -> None:
    table = whole(alone, "select t.id, other.id from t join other on t.id = other.id").table
    assert table.column_names == ["id", "id"]


def test_explain_says_that_the_only_host_computes_the_result(alone: Shards) -> None:
    (row,) = whole(alone, "explain select id from t").table.to_pylist()
    assert row["step"] == "the only host computes the result"
    assert alone.fragments == []


def test_a_failure_on_the_rows_is_an_error_of_the_query(alone: Shards) -> None:
    with pytest.raises(QueryError, match="host: the query fails on its rows"):
        whole(alone, "select 1 / (id - 1) as x from t")


def test_a_failed_host_is_reported(alone: Shards) -> None:
    query = Query("select id from t", None, alone.hosts["host"].schemas)
    with pytest.raises(CoverageError, match="gone"):
        query.run(lambda _: [FragmentReply("host", None, "gone")], is_one_host=True)


def test_a_query_is_planned_once() -> None:
    plans = QueryPlans({"t": TABLE.schema})
    first = plans.plan("select id from t", None, 1 << 26)
    assert plans.plan("select id from t", None, 1 << 26) is first
    bound = plans.plan("select id from t where id = $1", [1], 1 << 26)
    assert plans.plan("select id from t where id = $1", [2], 1 << 26).values != bound.values
