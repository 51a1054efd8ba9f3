"""The table `rdma_transfers` of mesh-telemetry: each transfer, told by who has begun it.

A transfer costs nothing more while nobody subscribes to events.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from mesh_core.spi import is_recorded, record_row
from mesh_rdma._errors import RDMACancelled

if TYPE_CHECKING:
    from mesh_core.spi import Completion

__all__ = ["TABLES", "told", "told_failed"]

TABLES = {
    "rdma_transfers": (
        "Transfers from memory to memory that have ended; told by who has begun them.",
        (
            "kind s | `read`, `write`, `copy` from owner to owner, or `action` of several",
            "transport s? | how; null where others choose",
            "peer s? | whose memory it was, if it was of one process",
            "bytes u64 | how many",
            "duration_us f64 | how long it took, in microseconds",
            "status s | `done`, `failed` or `cancelled`",
            "error s? | why it has failed",
        ),
        None,
    )
}


def told(
    completion: Completion[Any] | None,
    kind: str,
    nbytes: int,
    *,
    transport: str | None = None,
    peer: str | None = None,
    started_ns: int = 0,
) -> None:
    """Has a row told when a transfer ends; to be called while somebody subscribes.

    Args:
        completion: The transfer; None is one that has ended at once.
        kind: What it does.
        nbytes: How many bytes it moves.
        transport: How.
        peer: Whose memory it is.
        started_ns: When it was begun, on `time.monotonic_ns`; now if left out.
    """
    row = {"kind": kind, "transport": transport, "peer": peer, "bytes": nbytes}
    tell = partial(_tell, completion, row, started_ns or time.monotonic_ns())
    if completion is None:
        tell()
    else:
        completion.when_done(tell)


def told_failed(error: Exception, kind: str, nbytes: int, peer: str) -> None:
    """Tells of a transfer that could not be begun."""
    if is_recorded():
        row = {"kind": kind, "peer": peer, "bytes": nbytes, "duration_us": 0.0}
        record_row("rdma_transfers", row | _failure(error))


def _tell(completion: Completion[Any] | None, row: dict[str, Any], started_ns: int) -> None:
    row["duration_us"] = (time.monotonic_ns() - started_ns) / 1e3
    row["status"], row["error"] = "done", None
    try:
        if completion is not None:
            completion.outcome()
    except RDMACancelled:
        row["status"] = "cancelled"
    except Exception as error:
        row |= _failure(error)
    record_row("rdma_transfers", row)


def _failure(error: Exception) -> dict[str, Any]:
    return {"status": "failed", "error": f"{type(error).__name__}: {error}"}
