"""Splits a planned query into parts for hosts, and the rest that is computed over their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import datafusion
import pyarrow as pa

from mesh_telemetry._plan.lineage import Lineage
from mesh_telemetry._plan.partials import partials_of
from mesh_telemetry._plan.plan_tree import (
    Node,
    expression,
    is_pushable,
    named,
    plan_tree,
    qualifiers_of,
    qualify,
)
from mesh_telemetry._plan.quoting import quoted
from mesh_telemetry._plan.scans import embedded_units
from mesh_telemetry._plan.single_table import SingleTablePlan, single_table_plan, statement
from mesh_telemetry._plan.units import SemiJoin, Unit
from mesh_telemetry._rows.plain_types import plain_type

__all__ = ["Split", "split"]

# Anti joins are missing, because a plan does not show that NULL has a special meaning for NOT IN.
_How = Literal["inner", "left", "right", "full", "semi"]
_JOINS: dict[str, _How] = {
    "Inner": "inner",
    "Left": "left",
    "Right": "right",
    "Full": "full",
    "LeftSemi": "semi",
}
_ALWAYS = datafusion.lit(True)
_TOP_ROWS_MAX = 100_000


class Split:
    """A query in two parts.

    Attributes:
        units: The statements for hosts; each fills a table of the planning session.
        semi_joins: Pairs of units in which the keys of one can reduce the other.
        frame: The rest of the query over those tables.
        whole: The unit whose rows are the result without further work; None if there is more to do.
        rows_max: The number of those rows to return, in any order; None for all.
    """

    def __init__(
        self,
        units: list[Unit],
        semi_joins: list[SemiJoin],
        frame: datafusion.DataFrame,
        whole: Unit | None = None,
        rows_max: int | None = None,
    ) -> None:
        self.whole = whole
        self.rows_max = rows_max
        self.units = units
        self.semi_joins = semi_joins
        self.frame = frame


def split(
    frame: datafusion.DataFrame,
    session: datafusion.SessionContext,
    schemas: Mapping[str, pa.Schema],
) -> Split:
    """Split a query.

    Args:
        frame: The query over empty tables.
        session: The session in which the query was planned and is finished; shipped rows fill its
            tables.
        schemas: The tables of the hosts, with plain types.
    """
    division = _PlanSplitter(session, schemas)
    root = plan_tree(frame.optimized_logical_plan())
    local = "information_schema" in root.plan.display_indent()
    if root.kind == "DescribeTable" or local:
        rest = frame if not local else division.embed(root)
    else:
        rest = division.rebuild(root)
    units = [
        *division.units.values(),
        *embedded_units(division.embedded, session, schemas),
    ]
    whole = division.results.get(id(root))
    if whole is None or len(units) > 1 or root.kind == "Sort":
        return Split(units, division.semi_joins, rest)
    skip, rows_max = _bounds(root) if root.kind == "Limit" else (0, None)
    return Split(units, division.semi_joins, rest, None if skip else whole, rows_max)


class _PlanSplitter:
    def __init__(
        self, session: datafusion.SessionContext, schemas: Mapping[str, pa.Schema]
    ) -> None:
        self._session = session
        self._schemas = schemas
        self._lineage = Lineage()
        self.units: dict[str, Unit] = {}
        self.semi_joins: list[SemiJoin] = []
        self.embedded: list[Node] = []
        self.results: dict[int, Unit] = {}
        self._rebuilds: dict[str, Callable[[Node], datafusion.DataFrame | None]] = {
            "Projection": self._projection,
            "Filter": self._filter,
            "Sort": self._sort,
            "Limit": self._limit,
            "SubqueryAlias": self._alias,
            "Aggregate": self._aggregate,
            "Join": self._join,
            "Union": self._union,
        }

    def embed(self, node: Node) -> datafusion.DataFrame:
        """Keep a part of the plan unchanged: the tables that it scans are filled."""
        self.embedded.append(node)
        return self._session.create_dataframe_from_logical_plan(node.plan)

    def rebuild(self, node: Node) -> datafusion.DataFrame:
        """Return a frame with the output of the node, over tables that units fill."""
        before = dict(self.units), list(self.semi_joins), list(self.embedded)
        uses = {unit: unit.uses for unit in self.units.values()}
        wanted = self._session.create_dataframe_from_logical_plan(node.plan).schema()
        try:
            frame = self._unit(node, wanted)
            if frame is None and node.kind in self._rebuilds:
                frame = self._rebuilds[node.kind](node)
            if frame is not None and _fits(frame.schema(), wanted):
                return frame
        except Exception:  # DataFusion has no narrower class; what it refuses stays as it is
            pass
        self.units, self.semi_joins, self.embedded = before
        for unit, count in uses.items():
            unit.uses = count
        return self.embed(node)

    def _unit(self, node: Node, wanted: pa.Schema) -> datafusion.DataFrame | None:
        if node.kind == "Aggregate":
            return self._groups(node, wanted)
        if node.kind in ("Sort", "Limit"):
            return self._top(node, wanted)
        table_plan = single_table_plan(node, self._session, self._schemas)
        return (
            None if table_plan is None else self._rows(node, table_plan, table_plan.frame, wanted)
        )

    def _rows(
        self,
        node: Node,
        table_plan: SingleTablePlan,
        frame: datafusion.DataFrame,
        wanted: pa.Schema,
        way: str = "rows",
    ) -> datafusion.DataFrame | None:
        """Ship all rows of a plan over one table, or the first ones."""
        names = frame.schema().names
        if len(set(names)) < len(names):
            return None
        columns = [named(name).alias(f"c{at}") for at, name in enumerate(names)]
        is_selective = table_plan.is_selective or way == "top"
        reducible = len(names) if way == "rows" else 0
        unit = self._shipped(frame.select(*columns), table_plan.table, way, is_selective, reducible)
        if unit is None:
            return None
        self._lineage.note(node, unit, wanted.names)
        self.results[id(node)] = unit
        shipped = self._session.table(quoted(unit.fills))
        back = [datafusion.col(f"c{at}").alias(name) for at, name in enumerate(names)]
        qualifiers = qualifiers_of(node, len(names)) or [None] * len(names)
        return qualify(shipped.select(*back), qualifiers)

    def _shipped(
        self,
        frame: datafusion.DataFrame,
        table: str,
        way: str,
        is_selective: bool,
        reducible: int,
    ) -> Unit | None:
        sql = statement(frame, self._session)
        if sql is None:
            return None
        known = self.units.get(sql)
        if known is not None:
            known.uses += 1
            return known
        have = frame.schema()
        schema = pa.schema([pa.field(field.name, plain_type(field.type)) for field in have])
        if any(mine.type != its.type for mine, its in zip(schema, have, strict=True)):
            return None
        fills = f"shipped {len(self.units)}"
        unit = Unit(sql, table, fills, schema, way, is_selective, reducible)
        empty = pa.RecordBatch.from_arrays(
            [pa.array([], type=field.type) for field in schema], schema=schema
        )
        name = quoted(fills)
        if self._session.table_exist(name):
            self._session.deregister_table(name)
        self._session.register_record_batches(name, [[empty]])
        self.units[sql] = unit
        return unit

    def _groups(self, node: Node, wanted: pa.Schema) -> datafusion.DataFrame | None:
        """Ship partial aggregates, with one row for each group of each host."""
        table_plan = single_table_plan(node.inputs[0], self._session, self._schemas)
        if table_plan is None:
            return None
        partials = partials_of(node, table_plan.frame)
        if partials is None:
            return None
        unit = self._shipped(partials.frame, table_plan.table, "groups", True, partials.group_count)
        if unit is None:
            return None
        self._lineage.note(node, unit, wanted.names[: partials.group_count])
        shipped = self._session.table(quoted(unit.fills))
        whole = partials.finish(shipped, wanted.names, wanted.types)
        return qualify(whole, qualifiers_of(node, len(wanted.names)))

    def _top(self, node: Node, wanted: pa.Schema) -> datafusion.DataFrame | None:
        """Ship the first rows of each host, which include the first rows of all hosts."""
        if node.kind == "Sort":
            count = node.variant.get_fetch_val()
        else:
            skip, fetch = _bounds(node)
            count = None if fetch is None else skip + fetch
        table_plan = single_table_plan(node.inputs[0], self._session, self._schemas)
        if count is None or table_plan is None or count > _TOP_ROWS_MAX:
            return None
        frame = table_plan.frame
        if node.kind == "Sort":
            orders = node.variant.sort_exprs()
            if not all(is_pushable(expression(each.expr())) for each in orders):
                return None
            frame = frame.sort(*_sort_keys(node))
        shipped = self._rows(node, table_plan, frame.limit(count), wanted, "top")
        return None if shipped is None else self._first(node, shipped)

    def _first(self, node: Node, frame: datafusion.DataFrame) -> datafusion.DataFrame:
        if node.kind == "Sort":
            frame = frame.sort(*_sort_keys(node))
            count = node.variant.get_fetch_val()
            return frame if count is None else frame.limit(count)
        skip, fetch = _bounds(node)
        assert fetch is not None, "a limit without one stays as it is"
        return frame.limit(fetch, skip)

    def _projection(self, node: Node) -> datafusion.DataFrame:
        below = self.rebuild(node.inputs[0])
        return below.select(*(expression(each) for each in node.variant.projections()))

    def _filter(self, node: Node) -> datafusion.DataFrame:
        return self.rebuild(node.inputs[0]).filter(expression(node.variant.predicate()))

    def _sort(self, node: Node) -> datafusion.DataFrame:
        return self._first(node, self.rebuild(node.inputs[0]))

    def _limit(self, node: Node) -> datafusion.DataFrame | None:
        if _bounds(node)[1] is None:
            return None
        return self._first(node, self.rebuild(node.inputs[0]))

    def _alias(self, node: Node) -> datafusion.DataFrame:
        return self.rebuild(node.inputs[0]).alias(quoted(node.variant.alias()))

    def _aggregate(self, node: Node) -> datafusion.DataFrame:
        below = self.rebuild(node.inputs[0])
        groups = [expression(each) for each in node.variant.group_by_exprs()]
        return below.aggregate(
            groups, [expression(each) for each in node.variant.aggregate_exprs()]
        )

    def _union(self, node: Node) -> datafusion.DataFrame:
        first, *others = (self.rebuild(each) for each in node.inputs)
        for each in others:
            first = first.union(each)
        return first

    def _join(self, node: Node) -> datafusion.DataFrame | None:
        how = str(node.variant.join_type())
        if how not in _JOINS or node.variant.null_equals_null():
            return None
        left, right = (self.rebuild(each) for each in node.inputs)
        pairs = [(expression(a), expression(b)) for a, b in node.variant.on()]
        conditions = [a == b for a, b in pairs]
        further = node.variant.filter()
        if further is not None:
            conditions.append(expression(further))
        joined = left.join_on(right, *(conditions or [_ALWAYS]), how=_JOINS[how])
        self.semi_joins += self._lineage.semi_joins(node, how, pairs)
        return joined


def _fits(have: pa.Schema, wanted: pa.Schema) -> bool:
    # A scan without columns reads one arbitrary column, because the number of rows is still needed.
    if not wanted.names:
        return True
    return bool(have.names == wanted.names and have.types == wanted.types)


def _bounds(node: Node) -> tuple[int, int | None]:
    """Return how many rows a limit skips, and how many it returns."""
    skip, fetch = node.variant.skip(), node.variant.fetch()
    skipped = 0 if skip is None else int(expression(skip).python_value())
    return skipped, None if fetch is None else int(expression(fetch).python_value())


def _sort_keys(node: Node) -> list[datafusion.expr.SortExpr]:
    return [
        expression(each.expr()).sort(each.ascending(), each.nulls_first())
        for each in node.variant.sort_exprs()
    ]
