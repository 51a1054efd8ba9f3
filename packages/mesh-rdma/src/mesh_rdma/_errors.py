"""What goes wrong between a buffer and who uses it."""

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
    """A transfer, or the way to a buffer, failed."""


class RDMAReleased(RDMAError):
    """The buffer was dropped, by its owner or by somebody who held it."""


class RDMABoundsError(RDMAError, ValueError):
    """Bytes outside of a buffer were asked for, or a destination is too short."""


class RDMAReadOnlyError(RDMAError, TypeError):
    """Memory that may only be read was to be written."""


class RDMAAlignmentError(RDMAError, ValueError):
    """An atomic operation was asked for where none is possible."""


class RDMAPeerDied(RDMAError, SupervisionError):
    """The process that owns the buffer is gone, or cannot be reached any more."""

    def __str__(self) -> str:
        return self.reason or super().__str__()


class RDMATimeout(RDMAError, DeadlineExceeded):
    """The transfer was not done in time. No byte of it is written after this is raised."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else super().__str__()


class RDMACancelled(RDMAError, CallCancelled):
    """The transfer was given up. No byte of it is written after this is raised."""


class RDMATransportError(RDMAError):
    """A transport cannot be used for this buffer; the message says why."""


class RDMAIncomplete(RDMAError, ExceptionGroup[RDMAError]):
    """Some of many destinations were not filled; the others are.

    It is a group: `except* RDMAPeerDied` catches those whose owner or source is gone.

    Attributes:
        failures: Each that was not filled, by its place in the list of destinations (of sources
            where they are many), and what it failed with.
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
        """Gives the part of the failures that has these errors."""
        some = tuple((place, error) for place, error in self.failures if error in excs)
        return RDMAIncomplete(some, self._count)

    def __reduce__(self) -> tuple[Any, ...]:
        return RDMAIncomplete, (self.failures, self._count)
