"""Exceptions of buffers and transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mesh_core import CallCancelled, DeadlineExceeded, MeshError, SupervisionError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "RDMAAlignmentError",
    "RDMABoundsError",
    "RDMACancelled",
    "RDMAError",
    "RDMAIncomplete",
    "RDMAPeerDied",
    "RDMAReadOnlyError",
    "RDMAReleased",
    "RDMATimeout",
    "RDMATransportError",
]


class RDMAError(MeshError):
    """A transfer failed, or a buffer could not be reached."""


class RDMAReleased(RDMAError):
    """The buffer was dropped, by its owner or by another process that held it."""


class RDMABoundsError(RDMAError, ValueError):
    """A range exceeds a buffer, or a destination is too short."""


class RDMAReadOnlyError(RDMAError, TypeError):
    """A write to read-only memory was requested."""


class RDMAAlignmentError(RDMAError, ValueError):
    """An atomic operation was requested at an address that is not aligned to eight bytes."""


class RDMAPeerDied(RDMAError, SupervisionError):
    """The process that owns the buffer has died or can no longer be reached."""

    def __str__(self) -> str:
        return self.reason or super().__str__()


class RDMATimeout(RDMAError, DeadlineExceeded):
    """The transfer did not finish in time. No byte of it is written after this is raised."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else super().__str__()


class RDMACancelled(RDMAError, CallCancelled):
    """The transfer was cancelled. No byte of it is written after this is raised."""


class RDMATransportError(RDMAError):
    """A transport cannot be used for this buffer; the message gives the reason."""


class RDMAIncomplete(RDMAError, ExceptionGroup[RDMAError]):
    """Some of many destinations were not filled; all others were.

    It is an exception group: `except* RDMAPeerDied` catches the failures whose owner or source
    died.

    Attributes:
        failures: The index and the error of each failed transfer. The index refers to the list of
            destinations, or to the list of sources if there are many.
    """

    def __new__(cls, failures: tuple[tuple[int, RDMAError], ...], count: int) -> RDMAIncomplete:
        first, error = failures[0]
        words = f"{len(failures)} of {count} transfers failed, the first of them number {first}"
        errors = list(dict.fromkeys(error for _, error in failures))
        return super().__new__(cls, f"{words}: {error}", errors)

    def __init__(self, failures: tuple[tuple[int, RDMAError], ...], count: int) -> None:
        self.failures: tuple[tuple[int, RDMAError], ...] = failures
        self._count = count

    def derive(self, excs: Sequence[RDMAError]) -> RDMAIncomplete:  # type: ignore[override]
        """Return an exception with the failures that have these errors."""
        some = tuple((place, error) for place, error in self.failures if error in excs)
        return RDMAIncomplete(some, self._count)

    def __reduce__(self) -> tuple[Any, ...]:
        return RDMAIncomplete, (self.failures, self._count)


# Tracebacks show the public name, such as mesh_rdma.RDMATimeout.
for _error in (
    RDMAAlignmentError,
    RDMABoundsError,
    RDMACancelled,
    RDMAError,
    RDMAIncomplete,
    RDMAPeerDied,
    RDMAReadOnlyError,
    RDMAReleased,
    RDMATimeout,
    RDMATransportError,
):
    _error.__module__ = "mesh_rdma"
