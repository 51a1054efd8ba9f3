"""Units of a query: a statement for the hosts, and the table that its rows fill."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

__all__ = ["SemiJoin", "Unit"]


@dataclass(eq=False)
class Unit:
    """One statement that is sent to every host.

    Attributes:
        sql: The statement.
        table: The table that it reads.
        fills: The name of the table in the planning session that receives the rows.
        schema: The columns of its rows.
        way: `rows`, `groups`, `top` or `scan`.
        is_selective: Whether it omits rows, so that its keys may be few.
        reducible: The number of its first columns that may be filtered by keys of another unit.
        uses: How often the query reads it.
    """

    sql: str
    table: str
    fills: str
    schema: pa.Schema
    way: str
    is_selective: bool
    reducible: int
    uses: int = 1


@dataclass(frozen=True)
class SemiJoin:
    """A join that needs rows of one unit only if another unit has their key.

    Attributes:
        keys: The unit that provides the keys.
        keys_at: Its column.
        reduced: The unit whose rows without such a key the join drops.
        reduced_at: Its column.
    """

    keys: Unit
    keys_at: int
    reduced: Unit
    reduced_at: int
