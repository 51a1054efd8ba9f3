"""The rows that are shipped for parts of a plan that stay unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import datafusion
import pyarrow as pa

from mesh_telemetry._plan.plan_tree import Node, conjuncts, expression, is_pushable
from mesh_telemetry._plan.quoting import quoted
from mesh_telemetry._plan.single_table import base_table, statement
from mesh_telemetry._plan.units import Unit

__all__ = ["embedded_units"]


@dataclass(frozen=True)
class _Scan:
    table: str
    columns: tuple[str, ...]
    conditions: tuple[datafusion.Expr, ...]
    rows_max: int | None


def embedded_units(
    embedded: Iterable[Node],
    session: datafusion.SessionContext,
    schemas: Mapping[str, pa.Schema],
) -> list[Unit]:
    """Return a unit for each scanned table with the columns and rows that any scan needs."""
    scans: dict[str, list[_Scan]] = {}
    for root in embedded:
        found: list[_Scan] = []
        _visit(root, (), schemas, found)
        text = root.plan.display_indent()
        if text.count("TableScan: ") != _scan_count(root):
            # A plan inside an expression cannot be walked, so the tables that it reads are shipped
            # in full.
            found += [
                _Scan(table, tuple(schema.names), (), None)
                for table, schema in schemas.items()
                if f"{table} projection=" in text or f"{table}\n" in f"{text}\n"
            ]
        for scan in found:
            scans.setdefault(scan.table, []).append(scan)
    return [_unit(table, each, session, schemas[table]) for table, each in sorted(scans.items())]


def _scan_count(node: Node) -> int:
    return (node.kind == "TableScan") + sum(_scan_count(each) for each in node.inputs)


def _visit(
    node: Node,
    conditions: tuple[datafusion.Expr, ...],
    schemas: Mapping[str, pa.Schema],
    found: list[_Scan],
) -> None:
    if node.kind == "TableScan":
        table = base_table(node, schemas)
        if table is None:
            return
        columns = tuple(name for _, name in node.variant.projection())
        own = tuple(expression(each) for each in node.variant.filters())
        usable = tuple(each for each in (*conditions, *own) if is_pushable(each))
        is_cut_there = (
            node.variant.fetch() is not None and not conditions and len(usable) == len(own)
        )
        rows_max = node.variant.fetch() if is_cut_there else None
        found.append(_Scan(table, columns, usable, rows_max))
        return
    below: tuple[datafusion.Expr, ...] = ()
    if node.kind == "Filter":
        below = (*conditions, *conjuncts(expression(node.variant.predicate())))
    for each in node.inputs:
        _visit(each, below, schemas, found)


def _unit(
    table: str,
    scans: list[_Scan],
    session: datafusion.SessionContext,
    schema: pa.Schema,
) -> Unit:
    wanted = {name for scan in scans for name in scan.columns}
    names = [name for name in schema.names if name in wanted] or schema.names[:1]
    whole = session.table(quoted(table)).select(*(_column(table, name) for name in names))
    sql: str | None = None
    is_filtered = all(scan.conditions for scan in scans)
    try:
        frame = session.table(quoted(table))
        if is_filtered:
            frame = frame.filter(_any_of([_all_of(scan.conditions) for scan in scans]))
        frame = frame.select(*(_column(table, name) for name in names))
        if len(scans) == 1 and scans[0].rows_max is not None:
            frame = frame.limit(scans[0].rows_max)
        sql = statement(frame, session)
    except Exception:  # DataFusion has no narrower class; without the filter it is right as well
        pass
    if sql is None:
        is_filtered = False
        columns = ", ".join(quoted(name) for name in names)
        sql = f"SELECT {columns} FROM {quoted(table)}"
    return Unit(sql, table, table, whole.schema(), "scan", is_filtered, 0)


def _column(table: str, name: str) -> datafusion.Expr:
    return datafusion.col(f"{quoted(table)}.{quoted(name)}")


def _all_of(conditions: Iterable[datafusion.Expr]) -> datafusion.Expr:
    first, *others = conditions
    for each in others:
        first = first & each
    return first


def _any_of(conditions: Iterable[datafusion.Expr]) -> datafusion.Expr:
    first, *others = conditions
    for each in others:
        first = first | each
    return first
