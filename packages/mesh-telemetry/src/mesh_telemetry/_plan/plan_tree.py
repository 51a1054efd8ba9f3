"""A planned query as a tree that can be walked, and what can be seen from its expressions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import datafusion

__all__ = [
    "Node",
    "conjuncts",
    "expression",
    "is_pushable",
    "named",
    "plan_tree",
    "qualifiers_of",
    "qualify",
    "quoted",
    "quoted_literal",
    "scanned_tables",
]

# What gives another value each time must be computed once, where the query is finished; what
# asks another plan, where that plan is.
_STAYS = re.compile(
    r"\b(random|uuid\w*|rand)\(|<subquery>|outer_ref\(|__grouping_id", re.IGNORECASE
)


_SCAN = re.compile(r"^ *TableScan: (\S+)", re.MULTILINE)


@dataclass(eq=False)
class Node:
    """A node of a plan.

    Attributes:
        plan: The node with all below it.
        kind: What DataFusion calls it; `Other` for one that Python cannot look into.
        variant: The node's own attributes.
        inputs: The nodes that it reads.
        qualifiers: The names that the columns of its output may be qualified with.
    """

    plan: datafusion.LogicalPlan
    kind: str
    variant: Any
    inputs: tuple[Node, ...]
    qualifiers: frozenset[str] = field(default_factory=frozenset)


def plan_tree(plan: datafusion.LogicalPlan) -> Node:
    """Looks into a plan, as far as that can be done."""
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
    """Says for each of the columns of a node's output what it is qualified with, if anything."""
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
    """Gives the frame with its columns qualified one by one."""
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
    """Gives what a plan holds as an expression that the other functions take."""
    return raw if isinstance(raw, datafusion.Expr) else datafusion.Expr(raw)


def is_pushable(expr: datafusion.Expr) -> bool:
    """Says whether each host may compute it over its own rows, once or again."""
    return _STAYS.search(str(expr)) is None


def conjuncts(predicate: datafusion.Expr) -> list[datafusion.Expr]:
    """Takes a condition apart at its outermost ANDs."""
    if predicate.variant_name() == "BinaryExpr":
        parts = predicate.to_variant()
        if parts.op() == "AND":
            return [
                *conjuncts(expression(parts.left())),
                *conjuncts(expression(parts.right())),
            ]
    return [predicate]


def quoted(name: str) -> str:
    """Gives the name as SQL takes it literally."""
    return '"' + name.replace('"', '""') + '"'


def quoted_literal(text: str) -> str:
    """Gives the text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def named(name: str) -> datafusion.Expr:
    """Gives the column of just this name."""
    return datafusion.col(quoted(name))


def scanned_tables(plan: str) -> list[str]:
    """Gives the tables that a displayed plan reads, as often as it does."""
    return _SCAN.findall(plan)
