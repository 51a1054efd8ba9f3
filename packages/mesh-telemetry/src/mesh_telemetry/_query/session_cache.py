"""DataFusion sessions that are reused by later queries, with the tables that have not changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mesh_telemetry._plan.quoting import quoted
from mesh_telemetry._query.session import new_session, open_frame
from mesh_telemetry._rows.same_batches import are_same

if TYPE_CHECKING:
    import datafusion
    import pyarrow as pa

__all__ = ["CachedSession", "SessionCache"]

_FREE_MAX = 4
# Larger tables are dropped: their cache, not the session, decides how long they stay in memory.
_TABLES_BYTES_MAX = 32 << 20
_PLANS_MAX = 32
_TEXT_LEN_MAX = 10_000


class SessionCache:
    """Provides each query with a session that has its tables, and no others.

    Creating a session takes as long as planning a small query, and so does registering the tables
    of many processes. Instances are thread-safe.
    """

    def __init__(self) -> None:
        self._free: list[CachedSession] = []

    @contextmanager
    def filled(
        self, memory_max_bytes: int, tables: Mapping[str, Sequence[pa.RecordBatch]]
    ) -> Iterator[CachedSession]:
        """Yield a session for exclusive use, and keep it if the block raises no exception.

        Args:
            memory_max_bytes: Memory that the session may use in addition to the tables.
            tables: The rows of each table, in at least one batch.
        """
        session = self._taken(memory_max_bytes)
        session.fill(tables)
        yield session
        session.drop_large()
        if len(self._free) < _FREE_MAX:
            self._free.append(session)

    def _taken(self, memory_max_bytes: int) -> CachedSession:
        while self._free:
            try:
                session = self._free.pop()
            except IndexError:
                # Another thread took the last one.
                break
            if session.memory_max_bytes == memory_max_bytes:
                return session
        return CachedSession(memory_max_bytes)


class CachedSession:
    """A session with its registered tables and the plans over them."""

    def __init__(self, memory_max_bytes: int) -> None:
        self.memory_max_bytes = memory_max_bytes
        self.context = new_session(memory_max_bytes)
        self._tables: dict[str, Sequence[pa.RecordBatch]] = {}
        self._byte_counts: dict[str, int] = {}
        # A plan holds references to its tables, and cannot be used with other tables.
        self._plans: dict[str, datafusion.LogicalPlan] = {}

    def fill(self, tables: Mapping[str, Sequence[pa.RecordBatch]]) -> None:
        """Register exactly these tables."""
        for name in [name for name in self._tables if name not in tables]:
            self._drop(name)
        for name, batches in tables.items():
            before = self._tables.get(name)
            if before is not None:
                if are_same(before, batches):
                    continue
                self._drop(name)
            self.context.register_record_batches(quoted(name), [list(batches)])
            self._plans.clear()
            self._tables[name] = batches
            self._byte_counts[name] = sum(batch.nbytes for batch in batches)

    def open(self, sql: str, values: Mapping[str, pa.Scalar]) -> datafusion.DataFrame:
        """Plan a statement that reads, unless its plan over the same rows is cached.

        Raises:
            QueryError: It cannot be parsed or planned, or it would modify data.
        """
        known = self._plans.get(sql)
        if known is not None and not values:
            return self.context.create_dataframe_from_logical_plan(known)
        frame = open_frame(self.context, sql, self._tables, dict(values))
        if not values and len(sql) <= _TEXT_LEN_MAX:
            if len(self._plans) >= _PLANS_MAX:
                del self._plans[next(iter(self._plans))]
            self._plans[sql] = frame.logical_plan()
        return frame

    def drop_large(self) -> None:
        """Drop all tables if they are too large together."""
        if sum(self._byte_counts.values()) > _TABLES_BYTES_MAX:
            for name in list(self._tables):
                self._drop(name)

    def _drop(self, name: str) -> None:
        self._plans.clear()
        self.context.deregister_table(quoted(name))
        del self._tables[name], self._byte_counts[name]
