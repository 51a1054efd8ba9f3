"""Failures as values, which replace results that cannot be computed."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass

import cloudpickle  # type: ignore[import-untyped,unused-ignore]

from mesh_tensor._errors import OpFailed

__all__ = ["FailedValue", "Failure", "LostOperand", "TraceFailed", "portable"]


@dataclass(frozen=True)
class Failure:
    """An operation that failed on a rank.

    Attributes:
        number: The number of the operation in the program.
        rank: The rank.
        op: The name of the operation.
        error: The exception.
        within: The index of the operation within the trace, if it was replayed.
    """

    number: int
    rank: int
    op: str
    error: Exception
    within: int | None = None

    @classmethod
    def of(cls, number: int, rank: int, op: str, error: Exception) -> Failure:
        """Create a failure from an exception, without its stack frames."""
        return cls(number, rank, op, portable(error))

    def raised(self) -> OpFailed:
        """Return the exception for code in this process that needs the lost value."""
        what = f"{type(self.error).__name__}: {self.error}"
        error = OpFailed(self.op, self.rank, "  (the program knows where)", what)
        error.__cause__ = self.error
        return error


@dataclass(frozen=True)
class FailedValue:
    """The value of a slot that could not be computed; results computed from it are failed, too."""

    failure: Failure


class LostOperand(Exception):
    """An operand of an operation is lost; the original failure has already been reported."""


class TraceFailed(Exception):
    """Operations of a trace have failed, or had no valid operands.

    Attributes:
        failures: The original failures, numbered within the trace.
    """

    def __init__(self, failures: list[Failure]) -> None:
        super().__init__(failures)
        self.failures = failures


def portable(error: BaseException) -> Exception:
    """Return an exception that can be pickled; its traceback is added as text."""
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
