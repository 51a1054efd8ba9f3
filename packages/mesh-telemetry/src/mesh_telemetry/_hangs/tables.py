"""The table `hangs`, whose rows the program records when it finds a hang and when it ends."""

from __future__ import annotations

from mesh_core.spi import record_row
from mesh_telemetry._sources import SourceTable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from mesh_telemetry._hangs.hang import Hang

__all__ = ["HANGS", "HANG_ROWS", "TABLES", "hang_line", "open_hangs", "record_hang"]

HANGS = "hangs"
#: The query whose rows `open_hangs` takes.
HANG_ROWS = """
    select timestamp_us, event_type, kind, rank, mesh, culprit_proc, pid, culprit_host, reason, at,
           operation, sequence, process_group, waited_s
    from hangs order by timestamp_us desc limit 500
"""
TABLES = {
    HANGS: SourceTable(
        "Hangs that were found, one row for each culprit, and another one when it ended.",
        (
            "event_type s | `begin` or `end`",
            "kind s | `missing_call`, `different_order`, `shape_mismatch`, `data_loader`, "
            "`stopped`, `deadlock`, `blocked`, `busy`, `lost` or `link`",
            "rank i64 | the rank that keeps others waiting, in the world of the process group",
            "mesh s | its process mesh; empty if it is not recorded",
            "culprit_proc s | its process, such as `1.3`; empty if it is not recorded",
            "pid i64 | its process id; 0 if it is not recorded",
            "culprit_host s | its machine; empty if it is not recorded",
            "reason s | what it does instead",
            "at s | its line, as `file:line in function`; empty if it is not known",
            "operation s? | the collective in which others wait",
            "sequence i64? | the number of earlier operations of the group",
            "process_group s? | the name of the group",
            "waited_s f64? | how long the others had waited, in seconds",
        ),
    )
}


def record_hang(hang: Hang, event_type: str) -> None:
    """Record the rows of a hang."""
    waiting = hang.collective
    for culprit in hang.culprits:
        record_row(
            HANGS,
            {
                "event_type": event_type,
                "kind": culprit.kind,
                "rank": culprit.rank,
                "mesh": culprit.mesh,
                "culprit_proc": culprit.proc,
                "pid": culprit.pid,
                "culprit_host": culprit.host,
                "reason": culprit.reason,
                "at": culprit.where,
                "operation": None if waiting is None else waiting.operation,
                "sequence": None if waiting is None else waiting.sequence,
                "process_group": None if waiting is None else waiting.group,
                "waited_s": None if waiting is None else waiting.waited_s,
            },
        )


def open_hangs(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of hangs that have begun and not ended, oldest first.

    Args:
        rows: Rows of the table `hangs`, latest first.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in reversed(list(rows)):
        key = row["rank"], row["culprit_proc"], row["process_group"], row["sequence"]
        if row["event_type"] == "begin":
            found[key] = row
        else:
            found.pop(key, None)
    return list(found.values())


def hang_line(row: dict[str, Any]) -> str:
    """Describe a row of the table `hangs` in one line."""
    of = f" of {row['mesh']!r}" if row["mesh"] else ""
    place, _, function = row["at"].rpartition(" in ")
    at = f" at {place.rpartition('/')[2]} in {function}" if place else ""
    waits = f"; others wait in {row['operation']} #{row['sequence']}" if row["operation"] else ""
    return f"rank {row['rank']}{of} {row['reason']}{at}{waits}"
