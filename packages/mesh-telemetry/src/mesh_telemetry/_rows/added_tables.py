"""Tables that packages and programs add, as declared in the process that queries them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from mesh_telemetry._rows.schemas import TABLE_DOCS, TABLES, Column, TableDoc, column, schema_of
from mesh_telemetry._sources import source_tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mesh_telemetry._sources import SourceTable

__all__ = ["AddedTable", "added_tables", "table_docs"]

_ANY_TIME = "timestamp_us i64 | when, in microseconds since the epoch"
_NOW = "timestamp_us i64 | now"
_ACTOR = "actor_id u64? | the actor that ran, an `actors.id`; null outside of actors"
_WHERE = ("host s | the name of the machine", "proc s | the process, as `0.3`: host and slot")


@dataclass(frozen=True)
class AddedTable:
    """A table that a package adds, described for hosts on which the package may be missing.

    Attributes:
        name: Its name.
        schema: Its columns.
        is_live: Whether its rows are requested from processes.
    """

    name: str
    schema: pa.Schema
    is_live: bool


def table_docs(own: Mapping[str, SourceTable] | None = None) -> Mapping[str, TableDoc]:
    """Return all tables: built-in tables, tables of installed packages, and tables of a program.

    Raises:
        ValueError: A table of the program is declared incorrectly.
    """
    docs = dict(TABLE_DOCS)
    for name, table in source_tables().items():
        docs.setdefault(name, _doc(table))
    for name, table in (own or {}).items():
        if name in docs:
            raise ValueError(f"a table {name!r} already exists: choose another name")
        if table.rows is not None:
            raise ValueError(
                f"table {name!r} is live: other processes find it only through an entry point of"
                " mesh_telemetry.sources; without `rows`, add its rows with record_row"
            )
        docs[name] = _doc(table)
    return docs


def added_tables(
    names: Sequence[str], own: Mapping[str, SourceTable] | None = None
) -> tuple[AddedTable, ...]:
    """Return the given tables that are not built in."""
    found = []
    for name in names:
        table = (own or {}).get(name) or source_tables().get(name)
        if name not in TABLES and table is not None:
            found.append(AddedTable(name, schema_of(_doc(table)), table.rows is not None))
    return tuple(found)


def _doc(table: SourceTable) -> TableDoc:
    before = [_ANY_TIME, _ACTOR] if table.rows is None else [_NOW]
    added = [*map(column, before), *map(_open, table.columns), *map(column, _WHERE)]
    return TableDoc(table.text, tuple(added))


def _open(declared: str) -> Column:
    """Make a column nullable, because a package may record incomplete rows."""
    return column(declared)._replace(is_nullable=True)
