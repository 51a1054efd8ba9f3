"""Any distributed query returns the same result as over all rows in one place."""

from __future__ import annotations

import math
import random
from decimal import Decimal

import datafusion
import pyarrow as pa
import pytest
from random_queries import QueryMaker, random_tables
from shards import HostRows, Shards, spread

from mesh_telemetry._errors import QueryError
from mesh_telemetry._query.query import Query, QueryLimits
from mesh_telemetry._query.query_text import read_query
from mesh_telemetry._rows.plain_types import plain_schema, plain_table

_QUERIES_PER_SEED = 20
# Semi-join keys are sent whenever possible, although this does not pay for so few rows.
_LIMITS = QueryLimits(reduced_rows_min=0)


def one_place(tables: dict[str, pa.Table]) -> datafusion.SessionContext:
    session = datafusion.SessionContext()
    for name, table in tables.items():
        empty = pa.RecordBatch.from_arrays(
            [pa.array([], field.type) for field in table.schema], schema=table.schema
        )
        session.register_record_batches(name, [table.to_batches() or [empty]])
    return session


def comparable(value: object) -> object:
    if isinstance(value, float):
        if math.isnan(value):
            return "nan"
        return float(f"{value:.9g}") + 0.0
    if isinstance(value, Decimal):
        return value.normalize()
    if isinstance(value, list):
        return [comparable(each) for each in value]
    return value


def rows_of(table: pa.Table, is_ordered: bool) -> list[str]:
    columns = [[comparable(each) for each in column.to_pylist()] for column in table.columns]
    rows = [repr(row) for row in zip(*columns, strict=True)]
    return rows if is_ordered else sorted(rows)


def check(sql: str, seed: str, tables: dict[str, pa.Table], host_count: int) -> None:
    shards = spread(tables, host_count, random.Random(seed))
    if not host_count:
        tables = {name: table.slice(0, 0) for name, table in tables.items()}
    about = f"seed {seed}, {host_count} hosts: {sql}"
    schemas = {name: table.schema for name, table in tables.items()}
    try:
        frame = one_place(tables).sql(sql)
        wanted, expected = plain_schema(frame.schema()), plain_table(frame.to_arrow_table())
    except Exception:  # DataFusion has no narrower class
        with pytest.raises(QueryError):
            Query(sql, None, schemas).run(shards.ask, timeout_s=60)
        return
    answer = Query(sql, None, schemas, _LIMITS).run(shards.ask, timeout_s=60)
    assert answer.coverage.is_full, f"{about}: {answer.coverage.failed}"
    assert answer.table.schema.names == wanted.names, about
    assert answer.table.schema.types == wanted.types, about
    is_ordered = "ORDER BY" in sql and ", uid " in sql
    assert rows_of(answer.table, is_ordered) == rows_of(expected, is_ordered), about
    alone = Shards({"host": HostRows(tables)})
    whole = Query(sql, None, schemas).run(alone.ask, timeout_s=60, is_one_host=True)
    assert whole.table.schema.types == wanted.types, about
    assert rows_of(whole.table, is_ordered) == rows_of(expected, is_ordered), f"whole, {about}"


def check_seed(seed: int) -> None:
    rng = random.Random(seed)
    maker = QueryMaker(rng)
    for at in range(_QUERIES_PER_SEED):
        tables = random_tables(rng)
        host_count = rng.choice([0, 1, 2, 3, 5, 8])
        check(maker.query(), f"{seed}.{at}", tables, host_count)


@pytest.mark.parametrize("seed", range(12))
def test_a_random_query_returns_the_same_result_as_on_a_single_host(seed: int) -> None:
    check_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 60))
def test_many_random_queries_return_the_same_results_as_on_a_single_host(seed: int) -> None:
    check_seed(seed)


def test_no_random_query_is_parsed_as_having_a_time_clause() -> None:
    maker = QueryMaker(random.Random(0))
    texts = [maker.query() for _ in range(200)]
    assert [read_query(text).sql for text in texts] == texts
