"""Ships the small side of a join first, and of the other side only rows that match its keys."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from mesh_telemetry._plan.quoting import quoted_literal
from mesh_telemetry._plan.units import SemiJoin, Unit

__all__ = ["chosen", "count_statement", "useful_semi_joins", "with_keys"]


def useful_semi_joins(semi_joins: list[SemiJoin]) -> list[SemiJoin]:
    """Return the semi-joins that may pay off: few keys, of a type that has literals."""
    return [
        link
        for link in semi_joins
        if link.keys.is_selective
        and link.reduced.uses == 1
        and _is_writable(link.keys.schema.types[link.keys_at])
        and link.keys.schema.types[link.keys_at] == link.reduced.schema.types[link.reduced_at]
    ]


def count_statement(units: list[Unit]) -> str:
    """Return a statement that counts the rows of each unit, with columns `unit` and `row_count`."""
    return " UNION ALL ".join(
        f'SELECT {at} AS "unit", count(*) AS "row_count" FROM ({unit.sql}) AS "counted"'
        for at, unit in enumerate(units)
    )


def chosen(
    semi_joins: list[SemiJoin], row_counts: dict[Unit, int], rows_min: int
) -> list[SemiJoin]:
    """Return the semi-joins to follow: from fewer rows to more, which excludes cycles.

    If the reduced unit has fewer than `rows_min` rows, they are shipped at once, because another
    round trip would take longer.
    """
    return [
        link
        for link in semi_joins
        if row_counts[link.reduced] >= rows_min and row_counts[link.keys] < row_counts[link.reduced]
    ]


def with_keys(unit: Unit, filters: list[tuple[int, pa.Table, int]], keys_max: int) -> str:
    """Return the statement of a unit, restricted to rows that have keys of other units.

    Args:
        unit: The unit.
        filters: Columns of the unit, each with the rows of the other unit and its key column.
        keys_max: If there are more keys than this, they are not used as a filter.
    """
    conditions = []
    for at, rows, keys_at in filters:
        keys = pc.unique(rows.column(keys_at)).drop_null()
        if len(keys) <= keys_max:
            listed = ", ".join(_literal(key) for key in keys.to_pylist())
            conditions.append(f"c{at} IN ({listed})" if listed else "false")
    if not conditions:
        return unit.sql
    return f'SELECT * FROM ({unit.sql}) AS "matched" WHERE {" AND ".join(conditions)}'


def _is_writable(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind))


def _literal(key: int | str) -> str:
    return quoted_literal(key) if isinstance(key, str) else str(key)
