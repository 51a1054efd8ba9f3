"""Tables that packages add through the entry points `mesh_telemetry.sources`.

This module is imported in processes that only record, so it must not import Arrow.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib.metadata import entry_points
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    Rows = Iterable[Mapping[str, object]]

__all__ = ["GROUP", "SourceTable", "live_rows", "source_tables"]

GROUP = "mesh_telemetry.sources"
_ROWS_MAX = 10_000
_log = logging.getLogger("mesh_telemetry")


class SourceTable(NamedTuple):
    """A table that a package adds.

    An entry point of the group `mesh_telemetry.sources` is a mapping from table names to instances
    of this class. A plain tuple of the same three values works too, so that the package need not
    depend on mesh-telemetry.

    Example:
        >>> SourceTable("Checkpoints that were written.", ("step i64 | of the training",)).rows
    """

    text: str
    """A sentence that describes the rows."""
    columns: tuple[str, ...]
    """The columns, each as `name type | description`.

    The types are `u64`, `i64`, `f64`, `s` for text and `b` for booleans; a question mark after the
    type makes the column nullable. `timestamp_us`, `host` and `proc` are added to every table, and
    `actor_id` if rows are recorded.
    """
    rows: Callable[[], Rows] | None = None
    """Computes the current rows of a live table.

    Called in each recorded process, in a separate thread. If omitted, rows are recorded as they
    happen with `mesh_core.spi.record_row`.
    """


@cache
def source_tables() -> Mapping[str, SourceTable]:
    """Return the tables that installed packages add; packages that fail to load are skipped."""
    found: dict[str, SourceTable] = {}
    for entry in sorted(entry_points(group=GROUP)):
        try:
            added = {name: SourceTable(*table) for name, table in entry.load().items()}
        except Exception as error:
            # The tables of other packages remain usable.
            _log.warning("tables of %s are missing: %r", entry.name, error)
            continue
        for name, table in added.items():
            if name in found:
                _log.warning(
                    "table %s of %s is missing: another table has that name", name, entry.name
                )
            else:
                found[name] = table
    return found


def live_rows(table: str) -> list[dict[str, Any]]:
    """Return the rows of a live table in this process."""
    added = source_tables().get(table)
    if added is None or added.rows is None:
        return []
    rows = []
    for row in added.rows():
        rows.append(dict(row))
        if len(rows) == _ROWS_MAX:
            break
    return rows
