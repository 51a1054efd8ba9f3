"""Derives the time range of a fragment, so that a host need not read older rows."""

from __future__ import annotations

from collections.abc import Mapping

import datafusion
import pyarrow as pa

from mesh_telemetry._plan.plan_tree import Node, conjuncts, expression, plan_tree
from mesh_telemetry._query.fragment import Fragment
from mesh_telemetry._query.session import empty_batch, new_session, open_frame
from mesh_telemetry._rows.time_column import TIME_COLUMN

__all__ = ["since_us_of"]

_MEMORY_MAX_BYTES = 1 << 20


def since_us_of(fragment: Fragment, schemas: Mapping[str, pa.Schema]) -> dict[str, int]:
    """Return for each table the time before which no row passes the filters of the fragment.

    Only tables that are read once and filtered directly are included.
    """
    if TIME_COLUMN not in fragment.sql or ">" not in fragment.sql:
        return {}
    session = new_session(_MEMORY_MAX_BYTES)
    for table in fragment.tables:
        session.register_record_batches(f'"{table}"', [[empty_batch(schemas[table])]])
    frame = open_frame(session, fragment.sql, fragment.tables, dict(fragment.values))
    plan = frame.optimized_logical_plan()
    scans: dict[str, list[int | None]] = {}
    _visit(plan_tree(plan), None, scans)
    if plan.display_indent().count("TableScan: ") != sum(map(len, scans.values())):
        # A query inside an expression is not part of the tree.
        return {}
    return {
        table: bounds[0]
        for table, bounds in scans.items()
        if len(bounds) == 1 and bounds[0] is not None
    }


def _visit(node: Node, bound: int | None, scans: dict[str, list[int | None]]) -> None:
    if node.kind == "TableScan":
        scans.setdefault(node.variant.fqn()[2], []).append(bound)
        return
    below = None
    if node.kind == "Filter":
        bounds = [_lower_bound(each) for each in conjuncts(expression(node.variant.predicate()))]
        below = max((each for each in bounds if each is not None), default=None)
    for each in node.inputs:
        _visit(each, below, scans)


def _lower_bound(condition: datafusion.Expr) -> int | None:
    """Extract the bound of conditions such as `timestamp_us > 5`; None for all others."""
    if condition.variant_name() != "BinaryExpr":
        return None
    parts = condition.to_variant()
    left, right = expression(parts.left()), expression(parts.right())
    if parts.op() not in (">", ">=", "="):
        return None
    if left.variant_name() != "Column" or left.to_variant().name() != TIME_COLUMN:
        return None
    if right.variant_name() != "Literal":
        return None
    value = right.python_value()
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    return value if isinstance(value, int) else None
