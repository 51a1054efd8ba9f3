"""The table `hangs`, whose rows the program records when it finds a hang and when it ends."""

from __future__ import annotations

from mesh_core.spi import record_row
from mesh_telemetry._sources import SourceTable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_telemetry._hangs.hang import Hang

__all__ = ["HANGS", "TABLES", "record_hang"]

HANGS = "hangs"
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
