"""Sessions that stay for the next question, with those tables in them that have not changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mesh_telemetry._plan.plan_tree import quoted
from mesh_telemetry._query.session import new_session
from mesh_telemetry._rows.same_batches import are_same

if TYPE_CHECKING:
    import datafusion
    import pyarrow as pa

__all__ = ["KeptSessions"]

_FREE_MAX = 4
# Larger tables are not kept: who has made the rows says for how long they stay in memory.
_TABLES_BYTES_MAX = 32 << 20


class KeptSessions:
    """Gives each question a session that has its tables, and no others.

    Making a session takes as long as planning a small question, and so does giving it the tables
    of many processes. It may be used by several threads.
    """

    def __init__(self) -> None:
        self._free: list[_Session] = []

    @contextmanager
    def filled(
        self, memory_max_bytes: int, tables: Mapping[str, Sequence[pa.RecordBatch]]
    ) -> Iterator[datafusion.SessionContext]:
        """Gives a session that nobody else uses meanwhile, and keeps it if nothing was raised.

        Args:
            memory_max_bytes: What it may hold besides the tables.
            tables: The rows of each, at least one batch.
        """
        session = self._taken(memory_max_bytes)
        session.fill(tables)
        yield session.context
        session.drop_large()
        if len(self._free) < _FREE_MAX:
            self._free.append(session)

    def _taken(self, memory_max_bytes: int) -> _Session:
        while self._free:
            try:
                session = self._free.pop()
            except IndexError:
                # Somebody else was faster.
                break
            if session.memory_max_bytes == memory_max_bytes:
                return session
        return _Session(memory_max_bytes)


class _Session:
    """A session, and what is registered there."""

    def __init__(self, memory_max_bytes: int) -> None:
        self.memory_max_bytes = memory_max_bytes
        self.context = new_session(memory_max_bytes)
        self._tables: dict[str, Sequence[pa.RecordBatch]] = {}
        self._byte_counts: dict[str, int] = {}

    def fill(self, tables: Mapping[str, Sequence[pa.RecordBatch]]) -> None:
        """Has just these tables there."""
        for name in [name for name in self._tables if name not in tables]:
            self._drop(name)
        for name, batches in tables.items():
            before = self._tables.get(name)
            if before is not None:
                if are_same(before, batches):
                    continue
                self._drop(name)
            self.context.register_record_batches(quoted(name), [list(batches)])
            self._tables[name] = batches
            self._byte_counts[name] = sum(batch.nbytes for batch in batches)

    def drop_large(self) -> None:
        """Lets go of the tables if they are many bytes together."""
        if sum(self._byte_counts.values()) > _TABLES_BYTES_MAX:
            for name in list(self._tables):
                self._drop(name)

    def _drop(self, name: str) -> None:
        self.context.deregister_table(quoted(name))
        del self._tables[name], self._byte_counts[name]
