"""Aggregates in two steps: partial ones on every host, and the final ones over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import datafusion
import pyarrow as pa
from datafusion import functions
from datafusion.unparser import Dialect, Unparser

from mesh_telemetry._plan.plan_tree import Node, expression, is_pushable, named

__all__ = ["Partials", "partials_of"]

_SAME_AGAIN: dict[str, Callable[[datafusion.Expr], datafusion.Expr]] = {
    "sum": functions.sum,
    "min": functions.min,
    "max": functions.max,
    "bool_and": functions.bool_and,
    "bool_or": functions.bool_or,
    "bit_and": functions.bit_and,
    "bit_or": functions.bit_or,
    "bit_xor": functions.bit_xor,
}
_PART = "part of an average"
# Creating a literal searches for optional packages, which takes longer than everything else here.
_ZERO = datafusion.lit(0)


@dataclass
class _Aggregate:
    """One aggregate of the query: the final aggregates over the parts, and their combination."""

    aggregates: list[datafusion.Expr]
    made: Callable[[list[datafusion.Expr]], datafusion.Expr]


@dataclass
class Partials:
    """An aggregate whose partial results hosts can compute.

    Attributes:
        frame: The partial aggregate on a host, with columns `c0`, `c1` and so on.
        group_count: The number of its first columns that the query groups by.
    """

    frame: datafusion.DataFrame
    group_count: int
    _wholes: list[_Aggregate]

    def finish(
        self, shipped: datafusion.DataFrame, names: list[str], types: list[pa.DataType]
    ) -> datafusion.DataFrame:
        """Build the final aggregate over shipped rows, with the names and types of the query."""
        groups = [datafusion.col(f"c{at}") for at in range(self.group_count)]
        aggregates: list[datafusion.Expr] = []
        columns = list(groups)
        for whole in self._wholes:
            first = len(aggregates)
            aggregates += [each.alias(f"w{first + at}") for at, each in enumerate(whole.aggregates)]
            ours = [datafusion.col(f"w{at}") for at in range(first, len(aggregates))]
            columns.append(whole.made(ours))
        frame = shipped.aggregate(groups, aggregates)
        made = frame.select(*(each.alias(f"m{at}") for at, each in enumerate(columns)))
        return made.select(
            *(
                _as_type(datafusion.col(f"m{at}"), have, want).alias(name)
                for at, (name, have, want) in enumerate(
                    zip(names, made.schema().types, types, strict=True)
                )
            )
        )


def _as_type(expr: datafusion.Expr, have: pa.DataType, want: pa.DataType) -> datafusion.Expr:
    return expr if have == want else expr.cast(want)


@dataclass
class _ShippedColumns:
    """The columns of the partial aggregate, without duplicates."""

    below: datafusion.DataFrame
    groups: list[datafusion.Expr]
    distincts: list[datafusion.Expr] = field(default_factory=list)
    parts: list[datafusion.Expr] = field(default_factory=list)

    def distinct_at(self, expr: datafusion.Expr) -> str:
        return f"d{_index_of(self.distincts, expr)}"

    def part_at(self, expr: datafusion.Expr) -> str:
        return f"p{_index_of(self.parts, expr)}"


def _index_of(known: list[datafusion.Expr], expr: datafusion.Expr) -> int:
    for at, each in enumerate(known):
        if each.canonical_name() == expr.canonical_name():
            return at
    known.append(expr)
    return len(known) - 1


def partials_of(node: Node, below: datafusion.DataFrame) -> Partials | None:
    """Split an aggregate over `below`; return None if it cannot be computed from parts."""
    groups = [_unaliased(expression(each)) for each in node.variant.group_by_exprs()]
    if any(each.variant_name() == "GroupingSet" or not is_pushable(each) for each in groups):
        return None
    shipped = _ShippedColumns(below, groups)
    wholes: list[tuple[list[str], Callable[..., _Aggregate]]] = []
    for each in node.variant.aggregate_exprs():
        split = _split(node, each, shipped)
        if split is None:
            return None
        wholes.append(split)
    host = below.aggregate([*groups, *shipped.distincts], shipped.parts)
    names = host.schema().names
    at = {f"d{i}": f"c{len(groups) + i}" for i in range(len(shipped.distincts))}
    first = len(groups) + len(shipped.distincts)
    at |= {f"p{i}": f"c{first + i}" for i in range(len(shipped.parts))}
    frame = host.select(*(named(name).alias(f"c{i}") for i, name in enumerate(names)))
    made = [make(*(datafusion.col(at[column]) for column in columns)) for columns, make in wholes]
    return Partials(frame, len(groups), made)


def _split(
    node: Node, raw: object, shipped: _ShippedColumns
) -> tuple[list[str], Callable[..., _Aggregate]] | None:
    """Return the columns of the parts that one aggregate needs, and a function to combine them."""
    bare = _unaliased(expression(raw))
    if bare.variant_name() != "AggregateFunction" or not is_pushable(bare):
        return None
    function = node.variant.agg_func_name(raw)
    arguments = [expression(each) for each in node.variant.aggregation_arguments(raw)]
    text = bare.canonical_name()
    if "ORDER BY [" in text or "IGNORE NULLS" in text:
        return None
    if bare.to_variant().is_distinct() and function not in ("min", "max"):
        return _split_distinct(function, arguments, text, shipped)
    if function == "count":
        return [shipped.part_at(bare)], _count_made(bool(shipped.groups))
    if function in _SAME_AGAIN:
        again = _SAME_AGAIN[function]
        return [shipped.part_at(bare)], lambda part: _Aggregate([again(part)], _only)
    if function == "avg" and len(arguments) == 1:
        return _split_average(bare, arguments[0], shipped)
    return None


def _unaliased(expr: datafusion.Expr) -> datafusion.Expr:
    while expr.variant_name() == "Alias":
        expr = expression(expr.to_variant().expr())
    return expr


def _only(columns: list[datafusion.Expr]) -> datafusion.Expr:
    return columns[0]


def _count_made(is_grouped: bool) -> Callable[..., _Aggregate]:
    def made(columns: list[datafusion.Expr]) -> datafusion.Expr:
        # An aggregate without groups returns a row even if no host sent any.
        if is_grouped:
            return columns[0]
        return functions.coalesce(columns[0], _ZERO)

    return lambda part: _Aggregate([functions.sum(part)], made)


def _split_distinct(
    function: str, arguments: list[datafusion.Expr], text: str, shipped: _ShippedColumns
) -> tuple[list[str], Callable[..., _Aggregate]] | None:
    """Ship the distinct values themselves as additional groups."""
    if len(arguments) != 1 or "FILTER (WHERE" in text:
        return None
    (kind,) = shipped.below.select(arguments[0].alias("a")).schema().types
    # As groups, -0.0 and 0.0 differ; as distinct values, they are equal.
    if pa.types.is_floating(kind):
        return None
    column = shipped.distinct_at(arguments[0])
    if function == "count":
        return [column], lambda value: _Aggregate([functions.count(value, distinct=True)], _only)
    return None


def _split_average(
    bare: datafusion.Expr, argument: datafusion.Expr, shipped: _ShippedColumns
) -> tuple[list[str], Callable[..., _Aggregate]] | None:
    """Ship the sum and the count; only for floats, whose average is exactly their quotient."""
    if shipped.below.select(argument.alias("a")).schema().types != [pa.float64()]:
        return None
    if "FILTER (WHERE" in bare.canonical_name():
        parts = _filtered_parts(bare, shipped.below)
        if parts is None:
            return None
        total, count = parts
    else:
        total, count = functions.sum(argument), functions.count(argument)

    def made(columns: list[datafusion.Expr]) -> datafusion.Expr:
        return columns[0] / columns[1].cast(pa.float64())

    return [shipped.part_at(total), shipped.part_at(count)], lambda a, b: _Aggregate(
        [functions.sum(a), functions.sum(b)], made
    )


def _filtered_parts(
    bare: datafusion.Expr, below: datafusion.DataFrame
) -> tuple[datafusion.Expr, datafusion.Expr] | None:
    """Return sum and count with the filter of an average.

    An expression does not expose its filter, but its text contains it.
    """
    frame = below.aggregate([], [bare])
    part = named(frame.schema().names[0]).alias(_PART)
    text = Unparser(Dialect.default()).plan_to_sql(frame.select(part).logical_plan())
    start, end = "SELECT avg(", text.find(f' AS "{_PART}" FROM ')
    if not text.startswith(start) or end < 0:
        return None
    call = text[len(start) : end]
    found = [below.parse_sql_expr(f"{name}({call}") for name in ("sum", "count")]
    return found[0], found[1]
