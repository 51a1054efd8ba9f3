"""What is shipped: a statement for the hosts, and the table that its rows fill."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

__all__ = ["Link", "Unit"]


@dataclass(eq=False)
class Unit:
    """One statement that goes to every host.

    Attributes:
        sql: The statement.
        table: The table that it reads.
        fills: The name of the client's table that takes the rows.
        schema: The columns that come back.
        way: `rows`, `groups`, `top` or `scan`.
        is_selective: Whether it leaves rows out, so that its keys may be few.
        reducible: How many columns, the first ones, may be filtered by keys of another unit.
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
class Link:
    """A join in which rows of one unit are of use only if another unit has their key.

    Attributes:
        keys: The unit whose keys count.
        keys_at: Its column.
        reduced: The unit whose rows without such a key are dropped by the join.
        reduced_at: Its column.
    """

    keys: Unit
    keys_at: int
    reduced: Unit
    reduced_at: int
