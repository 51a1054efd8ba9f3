"""A query never sees the state that another one has left in its session."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mesh_telemetry import QueryError
from mesh_telemetry._query.session_cache import SessionCache

LIMIT_BYTES = 1 << 26
FEW, MORE = [pa.record_batch({"x": [1, 2]})], [pa.record_batch({"x": [1, 2, 3]})]


def asked(sessions: SessionCache, sql: str, **tables: list[pa.RecordBatch]) -> list[object]:
    with sessions.filled(LIMIT_BYTES, tables) as session:
        batches = session.open(sql, {}).collect()
    return [value for batch in batches for value in batch.column(0).to_pylist()]


def test_a_query_reads_its_own_rows() -> None:
    sessions = SessionCache()
    for rows, total in [(FEW, 3), (FEW, 3), (MORE, 6), (FEW, 3)]:
        assert asked(sessions, "select sum(x) from t", t=rows) == [total]
        assert asked(sessions, "select count(*) from t a join t b on a.x = b.x", t=rows) == [
            len(rows[0])
        ]


def test_tables_of_another_query_are_not_visible() -> None:
    sessions = SessionCache()
    assert asked(sessions, "select count(*) from t", t=FEW) == [2]
    with pytest.raises(QueryError, match="no table t"):
        asked(sessions, "select count(*) from t", u=FEW)
    names = "select table_name from information_schema.tables where table_schema = 'public'"
    assert asked(sessions, names, u=FEW) == ["u"]


def test_volatile_functions_return_a_new_value_for_each_query() -> None:
    sessions = SessionCache()
    for sql in ("select cast(now() as varchar)", "select random()"):
        assert len({tuple(asked(sessions, sql, t=FEW)) for _ in range(3)}) == 3


def test_a_query_uses_its_own_parameters() -> None:
    sessions = SessionCache()
    for value in (5, 7):
        with sessions.filled(LIMIT_BYTES, {"t": FEW}) as session:
            frame = session.open("select sum(x) + $1 from t", {"1": pa.scalar(value)})
            assert frame.collect()[0].column(0).to_pylist() == [3 + value]


def test_a_session_is_not_reused_after_its_query_failed() -> None:
    sessions = SessionCache()
    with sessions.filled(LIMIT_BYTES, {"t": FEW}) as first:
        pass
    with sessions.filled(LIMIT_BYTES, {"t": FEW}) as again:
        assert again is first
        with sessions.filled(LIMIT_BYTES, {"t": FEW}) as beside:
            assert beside is not first
    with pytest.raises(RuntimeError), sessions.filled(LIMIT_BYTES, {"t": FEW}) as failed:
        raise RuntimeError
    for _ in range(3):
        with sessions.filled(LIMIT_BYTES, {"t": FEW}) as other:
            assert other is not failed


def test_large_tables_are_released() -> None:
    sessions = SessionCache()
    large = [pa.record_batch({"x": pa.nulls(5 << 20, pa.int64())})]
    assert asked(sessions, "select count(*) from t", t=large) == [5 << 20]
    with sessions.filled(LIMIT_BYTES, {}) as session:
        assert not session.context.table_exist("t")
    with sessions.filled(LIMIT_BYTES, {"t": large}) as session:
        pass
    assert not session.context.table_exist("t")
