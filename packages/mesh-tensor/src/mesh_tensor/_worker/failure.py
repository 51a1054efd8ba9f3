"""Failures as values: what stands in for a result that there is none of."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass

import cloudpickle  # type: ignore[import-untyped,unused-ignore]

from mesh_tensor._errors import OpFailed

__all__ = ["FailedValue", "Failure", "TraceFailed", "portable"]


@dataclass(frozen=True)
class Failure:
    """An operation that failed on a rank.

    Attributes:
        number: Which operation of the program.
        rank: Where.
        op: What it was called.
        error: What was raised there.
        within: Which operation of a trace, where it is one that was replayed.
    """

    number: int
    rank: int
    op: str
    error: Exception
    within: int | None = None

    @classmethod
    def of(cls, number: int, rank: int, op: str, error: Exception) -> Failure:
        """Notes an error, without the frames that it went through here."""
        return cls(number, rank, op, portable(error))

    def raised(self) -> OpFailed:
        """Gives what is raised where somebody wants what depends on it."""
        what = f"{type(self.error).__name__}: {self.error}"
        error = OpFailed(self.op, self.rank, "  (the program knows where)", what)
        error.__cause__ = self.error
        return error


@dataclass(frozen=True)
class FailedValue:
    """What is in the slot of a result that could not be made; what is made of it is the same."""

    failure: Failure


class TraceFailed(Exception):
    """Operations of a trace have failed, or had nothing to work on.

    Attributes:
        failures: Those that failed for a reason of their own, numbered within the trace.
    """

    def __init__(self, failures: list[Failure]) -> None:
        super().__init__(failures)
        self.failures = failures


def portable(error: BaseException) -> Exception:
    """Gives an error that can be sent: without its frames, which are added in words."""
    text = "".join(traceback.format_exception(error))
    made: Exception
    try:
        bare = error.with_traceback(None)
        made = pickle.loads(cloudpickle.dumps(bare))
        if not isinstance(made, Exception):
            made = RuntimeError(f"{type(error).__name__}: {error}")
    except Exception:
        made = RuntimeError(f"{type(error).__name__}: {error}")
    made.add_note(f"in its process:\n{text}")
    return made
