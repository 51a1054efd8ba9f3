"""Translation of verbs errors to exceptions of transfers."""

from __future__ import annotations

from mesh_rdma._errors import RDMAError, RDMAPeerDied, RDMAReleased, RDMATransportError
from mesh_rdma._verbs.binding import FLUSHED

#: The remote adapter refused the request and executed none of the requests that follow it.
REFUSALS = frozenset({9, 10, 11})

#: The remote adapter did not respond to any retry.
SILENCES = frozenset({12, 13})


def is_refusal(status: int) -> bool:
    """Return whether the remote adapter refused a work request."""
    return status in REFUSALS


def error_of(status: int, reason: str) -> RDMAError:
    """Return the error of a transfer that ended with a status."""
    if status in REFUSALS:
        return RDMAReleased(
            f"the owner's adapter rejected the key ({reason}): request a new handle"
        )
    if status in SILENCES:
        return RDMAPeerDied(f"the owner's adapter did not answer ({reason}): check that host")
    if status == FLUSHED:
        return RDMATransportError(
            "verbs: given up together with others: whether the word was changed is not known"
        )
    return RDMATransportError(
        f"verbs: the local adapter failed ({reason}): check the memory that was passed"
    )


def unregistered(nbytes: int, error: OSError) -> RDMAError:
    """Return the error for memory that cannot be registered with an adapter."""
    return RDMATransportError(f"verbs: cannot register {nbytes} bytes ({error}): check ulimit -l")
