"""The part of a plan that every host can compute from its own rows of one table."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import datafusion
import pyarrow as pa
from datafusion.unparser import Dialect, Unparser

from mesh_telemetry._plan.plan_tree import Node, expression, is_pushable, named
from mesh_telemetry._plan.quoting import quoted

__all__ = ["SingleTablePlan", "base_table", "single_table_plan", "statement"]


@dataclass(frozen=True)
class SingleTablePlan:
    """Filters and projections over one table.

    Attributes:
        frame: The plan over the empty table of the planning session.
        table: The table's name.
        is_selective: Whether it omits rows.
    """

    frame: datafusion.DataFrame
    table: str
    is_selective: bool


def base_table(node: Node, schemas: Mapping[str, pa.Schema]) -> str | None:
    """Return the host table that a scan reads; None if it reads a table of the planning session."""
    catalog, schema, table = node.variant.fqn()
    if catalog in (None, "datafusion") and schema in (None, "public") and table in schemas:
        return str(table)
    return None


def single_table_plan(
    node: Node, session: datafusion.SessionContext, schemas: Mapping[str, pa.Schema]
) -> SingleTablePlan | None:
    """Recognize filters and projections over one table.

    Returns:
        The plan; None if part of it must be computed where the query is finished.
    """
    if node.kind == "TableScan":
        return _scan(node, session, schemas)
    if node.kind not in ("Filter", "Projection", "SubqueryAlias"):
        return None
    below = single_table_plan(node.inputs[0], session, schemas)
    if below is None:
        return None
    frame, is_selective = below.frame, below.is_selective
    if node.kind == "Filter":
        predicate = expression(node.variant.predicate())
        if not is_pushable(predicate):
            return None
        frame, is_selective = frame.filter(predicate), True
    elif node.kind == "Projection":
        expressions = [expression(each) for each in node.variant.projections()]
        if not all(is_pushable(each) for each in expressions):
            return None
        # If only the number of rows matters, there are no expressions, and any column is
        # sufficient.
        frame = frame.select(*(expressions or [named(frame.schema().names[0])]))
    else:
        columns = [named(name) for name in frame.schema().names]
        frame = frame.select(*columns).alias(quoted(node.variant.alias()))
    return SingleTablePlan(frame, below.table, is_selective)


def _scan(
    node: Node, session: datafusion.SessionContext, schemas: Mapping[str, pa.Schema]
) -> SingleTablePlan | None:
    table = base_table(node, schemas)
    catalog, schema, _ = node.variant.fqn()
    if table is None or catalog is not None or schema is not None:
        return None
    filters = [expression(each) for each in node.variant.filters()]
    if not all(is_pushable(each) for each in filters):
        return None
    frame = session.table(quoted(table))
    for each in filters:
        frame = frame.filter(each)
    columns = [name for _, name in node.variant.projection()] or schemas[table].names[:1]
    frame = frame.select(*(datafusion.col(f"{quoted(table)}.{quoted(each)}") for each in columns))
    return SingleTablePlan(frame, table, bool(filters))


class _ComparisonCache:
    """A cache of the results of comparing statements with their plans."""

    def __init__(self, count_max: int) -> None:
        self._results: OrderedDict[tuple[str, str], bool] = OrderedDict()
        self._count_max = count_max

    def get(self, key: tuple[str, str]) -> bool | None:
        return self._results.get(key)

    def add(self, key: tuple[str, str], result: bool) -> None:
        self._results[key] = result
        while len(self._results) > self._count_max:
            self._results.popitem(last=False)


# Programs repeat the same queries, so a small cache suffices.
_SEEN = _ComparisonCache(count_max=512)


def statement(frame: datafusion.DataFrame, session: datafusion.SessionContext) -> str | None:
    """Convert a frame to SQL; return None if the SQL would be parsed to a different plan."""
    try:
        plan = frame.logical_plan()
        sql: str = Unparser(Dialect.default()).plan_to_sql(plan)
        key = sql, plan.display_indent_schema()
        result = _SEEN.get(key)
        if result is None:
            meant = frame.optimized_logical_plan().display_indent_schema()
            read = session.sql(sql).optimized_logical_plan().display_indent_schema()
            result = read == meant
            _SEEN.add(key, result)
    except Exception:  # DataFusion has no narrower class
        return None
    return sql if result else None
