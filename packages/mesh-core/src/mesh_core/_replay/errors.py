"""Errors with which a replay ends before its last message."""

from __future__ import annotations

from mesh_core._errors import MeshError

__all__ = ["NotReplayable", "RecordEnded", "ReplayDiverged", "ReplayError", "ReplayedDeath"]


class ReplayError(MeshError):
    """A case cannot be replayed."""


class ReplayedDeath(Exception):
    """The process of a replay died, as the recorded process did."""


class ReplayDiverged(BaseException):
    """The actor behaves differently from the recorded run.

    It is not an `Exception`, so that the code of the actor does not catch it.

    Attributes:
        number: The number of the message at which the runs differ.
    """

    def __init__(self, number: int, what: str, recorded: str, replayed: str) -> None:
        super().__init__(
            f"message #{number}: {what} differs from the recorded run\n"
            f"  recorded: {recorded}\n"
            f"  replayed: {replayed}"
        )
        self.number = number


class NotReplayable(BaseException):
    """The actor does something that recordings do not contain."""


class RecordEnded(BaseException):
    """The actor continues after the end of the record."""


# Tracebacks show the public name, such as mesh_core.replay.ReplayError.
for _error in (RecordEnded, ReplayDiverged, ReplayError, ReplayedDeath):
    _error.__module__ = "mesh_core.replay"
