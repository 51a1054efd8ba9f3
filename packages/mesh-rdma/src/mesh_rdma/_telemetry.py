"""The table `rdma_transfers` of mesh-telemetry: one row per transfer, recorded by its initiator.

Transfers have no extra cost while there is no subscription to events.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from mesh_core.spi import is_recorded, record_row
from mesh_rdma._errors import RDMACancelled

if TYPE_CHECKING:
    from mesh_core.spi import Completion

__all__ = ["TABLES", "record_failed_transfer", "record_transfer"]

TABLES = {
    "rdma_transfers": (
        "Finished memory transfers, recorded by the process that started them.",
        (
            "kind s | `read`, `write`, `copy` from owner to owner, or `action` of several",
            "transport s? | the transport; null if another process chooses it",
            "peer s? | the owner of the memory, if it is one process",
            "bytes u64 | how many",
            "duration_us f64 | how long it took, in microseconds",
            "status s | `done`, `failed` or `cancelled`",
            "error s? | why it failed",
        ),
        None,
    )
}


def record_transfer(
    completion: Completion[Any] | None,
    kind: str,
    nbytes: int,
    *,
    transport: str | None = None,
    peer: str | None = None,
    started_ns: int = 0,
) -> None:
    """Record a row when a transfer ends; call this only while there is a subscription.

    Args:
        completion: The transfer; None if it has ended already.
        kind: The kind of transfer.
        nbytes: The number of bytes.
        transport: The name of the transport.
        peer: The owner of the remote memory.
        started_ns: The start on the clock of `time.monotonic_ns`; 0 is now.
    """
    row = {"kind": kind, "transport": transport, "peer": peer, "bytes": nbytes}
    record = partial(_record, completion, row, started_ns or time.monotonic_ns())
    if completion is None:
        record()
    else:
        completion.when_done(record)


def record_failed_transfer(error: Exception, kind: str, nbytes: int, peer: str) -> None:
    """Record a row for a transfer that failed to start."""
    if is_recorded():
        row = {"kind": kind, "peer": peer, "bytes": nbytes, "duration_us": 0.0}
        record_row("rdma_transfers", row | _failure(error))


def _record(completion: Completion[Any] | None, row: dict[str, Any], started_ns: int) -> None:
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
