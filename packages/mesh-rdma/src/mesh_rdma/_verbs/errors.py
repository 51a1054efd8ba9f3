"""What the errors of verbs mean to who has asked for a transfer."""

from __future__ import annotations

from mesh_rdma._errors import RDMAError, RDMAPeerDied, RDMAReleased, RDMATransportError
from mesh_rdma._verbs.binding import FLUSHED

#: The adapter of the other end has said no; it has done nothing that came after.
REFUSALS = frozenset({9, 10, 11})

#: It has said nothing at all, for as often as it was asked.
SILENCES = frozenset({12, 13})


def is_refusal(status: int) -> bool:
    """Whether the other end has refused a work request."""
    return status in REFUSALS


def error_of(status: int, reason: str) -> RDMAError:
    """Returns the error of a transfer that ended with a status."""
    if status in REFUSALS:
        return RDMAReleased(f"the owner's adapter refuses the key ({reason}): ask for a new handle")
    if status in SILENCES:
        return RDMAPeerDied(f"the owner's adapter does not answer ({reason}): see that host")
    if status == FLUSHED:
        return RDMATransportError(
            "verbs: given up together with others: whether the word was changed is not known"
        )
    return RDMATransportError(f"verbs: the adapter here gave up ({reason}): see the memory given")


def unregistered(nbytes: int, error: OSError) -> RDMAError:
    """Returns the error of memory that an adapter is not given."""
    return RDMATransportError(
        f"verbs: {nbytes} bytes cannot be registered ({error}): see ulimit -l"
    )
