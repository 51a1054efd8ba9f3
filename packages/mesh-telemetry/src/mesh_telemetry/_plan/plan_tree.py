"""A planned query as a tree of nodes, and properties of its expressions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import datafusion

from mesh_telemetry._plan.quoting import quoted

__all__ = [
    "Node",
    "conjuncts",
    "expression",
    "is_pushable",
    "named",
    "plan_tree",
    "qualifiers_of",
    "qualify",
    "scanned_tables",
]

# Expressions that must not be sent to hosts: volatile ones must be evaluated once, where the query
# is finished, and those that refer to another plan belong where that plan is.
_STAYS = re.compile(
    r"\b(random|uuid\w*|rand)\(|<subquery>|outer_ref\(|__grouping_id", re.IGNORECASE
)


_SCAN = re.compile(r"^ *TableScan: (\S+)", re.MULTILINE)


@dataclass(eq=False)
class Node:
    """A node of a plan.

    Attributes:
        plan: The node with everything below it.
        kind: DataFusion's name of its type; `Other` if Python cannot inspect it.
        variant: The node's own attributes.
        inputs: The nodes that it reads.
        qualifiers: The names with which the columns of its output may be qualified.
    """

    plan: datafusion.LogicalPlan
    kind: str
    variant: Any
    inputs: tuple[Node, ...]
    qualifiers: frozenset[str] = field(default_factory=frozenset)


def plan_tree(plan: datafusion.LogicalPlan) -> Node:
    """Convert a plan to a tree, up to the nodes that Python cannot inspect."""
    inputs = tuple(plan_tree(each) for each in plan.inputs())
    try:
        variant = plan.to_variant()
        kind = type(variant).__name__
    except Exception:  # DataFusion has no narrower class
        variant, kind = None, "Other"
    qualifiers = frozenset[str]().union(*(each.qualifiers for each in inputs))
    if kind == "TableScan":
        qualifiers = frozenset({variant.table_name()})
    elif kind == "SubqueryAlias":
        qualifiers = frozenset({variant.alias()})
    return Node(plan, kind, variant, inputs, qualifiers)


def qualifiers_of(node: Node, count: int) -> list[str | None]:
    """Return the qualifier of each column of a node's output, or None."""
    if node.kind in ("Filter", "Sort", "Limit"):
        return qualifiers_of(node.inputs[0], count)
    if node.kind == "Projection":
        return [_relation(expression(each)) for each in node.variant.projections()]
    if node.kind == "Aggregate":
        groups = [_relation(expression(each)) for each in node.variant.group_by_exprs()]
        return [*groups, *[None] * (count - len(groups))]
    only: list[str | None] = [*node.qualifiers]
    return only[:1] * count


def _relation(expr: datafusion.Expr) -> str | None:
    relation: str | None = None
    if expr.variant_name() == "Column":
        relation = expr.to_variant().relation()
    return relation


def qualify(frame: datafusion.DataFrame, qualifiers: list[str | None]) -> datafusion.DataFrame:
    """Return the frame with its columns qualified individually."""
    names = {each for each in qualifiers if each is not None}
    if not names:
        return frame
    (name,) = names
    frame = frame.alias(quoted(name))
    if None not in qualifiers:
        return frame
    columns = [f"{quoted(name)}.{quoted(each)}" for each in frame.schema().names]
    return frame.select(
        *(
            datafusion.col(column).alias(own) if qualifier is None else datafusion.col(column)
            for column, own, qualifier in zip(
                columns, frame.schema().names, qualifiers, strict=True
            )
        )
    )


def expression(raw: Any) -> datafusion.Expr:
    """Wrap an expression of a plan for use in other functions."""
    return raw if isinstance(raw, datafusion.Expr) else datafusion.Expr(raw)


def is_pushable(expr: datafusion.Expr) -> bool:
    """Return whether each host may compute it over its own rows, possibly more than once."""
    return _STAYS.search(str(expr)) is None


def conjuncts(predicate: datafusion.Expr) -> list[datafusion.Expr]:
    """Split a condition at its outermost ANDs."""
    if predicate.variant_name() == "BinaryExpr":
        parts = predicate.to_variant()
        if parts.op() == "AND":
            return [
                *conjuncts(expression(parts.left())),
                *conjuncts(expression(parts.right())),
            ]
    return [predicate]


def named(name: str) -> datafusion.Expr:
    """Return the column with exactly this name."""
    return datafusion.col(quoted(name))


def scanned_tables(plan: str) -> list[str]:
    """Return the tables that a displayed plan reads, once per scan."""
    return _SCAN.findall(plan)
