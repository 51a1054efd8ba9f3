"""Tables that packages add, by the entry points `mesh_telemetry.sources`.

This is read in processes that only record, so that it loads no Arrow.
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

    An entry point of the group `mesh_telemetry.sources` gives a mapping from names of tables to
    these; a plain tuple of the same three is as good, for packages that need no mesh-telemetry.

    Example:
        >>> SourceTable("Checkpoints that were written.", ("step i64 | of the training",)).rows
    """

    text: str
    """What its rows are."""
    columns: tuple[str, ...]
    """Each as `name type | what is in it`: `u64`, `i64`, `f64`, `s` for text, `b` for true and
    false, with a question mark where it may be null. `timestamp_us`, `host` and `proc` are added,
    and `actor_id` where rows are told."""
    rows: Callable[[], Rows] | None = None
    """Gives what is now, in each process that is recorded, in a thread of its own: a live table.
    Without it rows are told as they happen, by `mesh_core.spi.record_row`."""


@cache
def source_tables() -> Mapping[str, SourceTable]:
    """Gives the tables that installed packages add; what cannot be loaded is left out."""
    found: dict[str, SourceTable] = {}
    for entry in sorted(entry_points(group=GROUP)):
        try:
            added = {name: SourceTable(*table) for name, table in entry.load().items()}
        except Exception as error:
            # The other tables are as good without it.
            _log.warning("tables of %s are missing: %r", entry.name, error)
            continue
        for name, table in added.items():
            if name in found:
                _log.warning(
                    "table %s of %s is missing: another one has that name", name, entry.name
                )
            else:
                found[name] = table
    return found


def live_rows(table: str) -> list[dict[str, Any]]:
    """Gives the rows of a live table in this process."""
    added = source_tables().get(table)
    if added is None or added.rows is None:
        return []
    rows = []
    for row in added.rows():
        rows.append(dict(row))
        if len(rows) == _ROWS_MAX:
            break
    return rows
