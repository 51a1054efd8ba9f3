"""The plan of a query over empty tables: which tables it reads and which columns it returns."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import datafusion
import pyarrow as pa

from mesh_telemetry._plan.plan_tree import scanned_tables
from mesh_telemetry._plan.quoting import quoted
from mesh_telemetry._query.query_text import QueryText, read_query, values_of
from mesh_telemetry._query.session import empty_batch, new_session, open_frame
from mesh_telemetry._query.session_cache import SessionCache
from mesh_telemetry._rows.plain_types import plain_schema

__all__ = ["QueryPlan", "QueryPlans", "open_query"]

_CATALOG = re.compile(r"information_schema|^\s*(?:show|desc)", re.IGNORECASE)
_PLANS_MAX = 256
_TEXT_LEN_MAX = 10_000


@dataclass(frozen=True)
class QueryPlan:
    """A valid query.

    Attributes:
        text: The query without the syntax that only Mesh supports.
        values: The values of its parameters.
        schemas: The tables that it may read, with plain types.
        wanted: The columns of the result.
        tables: The tables that it reads; None if it reads no table, or a table of the planning
            session such as the catalog.
    """

    text: QueryText
    values: Mapping[str, pa.Scalar]
    schemas: Mapping[str, pa.Schema]
    wanted: pa.Schema
    tables: tuple[str, ...] | None


class QueryPlans:
    """Plans queries, and caches the plans of the most recent ones.

    Args:
        schemas: The tables that hosts have.
    """

    def __init__(self, schemas: Mapping[str, pa.Schema]) -> None:
        self.schemas = schemas
        self._plain = {table: plain_schema(schema) for table, schema in schemas.items()}
        self._empty = {table: [empty_batch(schema)] for table, schema in self._plain.items()}
        self._sessions = SessionCache()
        self._kept: OrderedDict[object, QueryPlan] = OrderedDict()
        self._turn = threading.Lock()

    def plan(
        self,
        sql: str,
        parameters: Sequence[object] | Mapping[str, object] | None,
        memory_max_bytes: int,
    ) -> QueryPlan:
        """Plan a query.

        Args:
            sql: A query that only reads.
            parameters: The values of `$1` and so on, of `?`, or of `$name`.
            memory_max_bytes: Memory that planning may use.

        Raises:
            QueryError: The query is invalid.
        """
        if parameters or len(sql) > _TEXT_LEN_MAX:
            return self._planned(sql, parameters, memory_max_bytes)
        with self._turn:
            found = self._kept.get(sql)
            if found is not None:
                self._kept.move_to_end(sql)
                return found
        found = self._planned(sql, parameters, memory_max_bytes)
        with self._turn:
            self._kept[sql] = found
            while len(self._kept) > _PLANS_MAX:
                self._kept.popitem(last=False)
        return found

    def _planned(
        self,
        sql: str,
        parameters: Sequence[object] | Mapping[str, object] | None,
        memory_max_bytes: int,
    ) -> QueryPlan:
        text = read_query(sql)
        values = values_of(parameters, text.marks)
        read = _readable(text.sql, self.schemas)
        empty = {table: self._empty[table] for table in read}
        with self._sessions.filled(memory_max_bytes, empty) as session:
            frame = open_frame(session.context, text.sql, self.schemas, dict(values))
            wanted = plain_schema(frame.schema())
            plan = frame.logical_plan().display_indent()
        scanned = tuple(dict.fromkeys(scanned_tables(plan)))
        tables = scanned if scanned and all(table in empty for table in scanned) else None
        return QueryPlan(
            text, values, {table: self._plain[table] for table in read}, wanted, tables
        )


def open_query(
    planned: QueryPlan, known: Mapping[str, pa.Schema], memory_max_bytes: int
) -> tuple[datafusion.SessionContext, datafusion.DataFrame]:
    """Plan a query over empty tables, in a new session.

    Raises:
        QueryError: It cannot be parsed or planned.
    """
    session = new_session(memory_max_bytes)
    for table, schema in planned.schemas.items():
        session.register_record_batches(quoted(table), [[empty_batch(schema)]])
    return session, open_frame(session, planned.text.sql, known, dict(planned.values))


def _readable(sql: str, tables: Iterable[str]) -> list[str]:
    """Return the tables that a query may read; the others are not needed to plan it."""
    if _CATALOG.search(sql) is not None:
        return list(tables)
    words = sql.lower()
    return [table for table in tables if table.lower() in words]
