"""Tracebacks that begin in the code of the user."""

from __future__ import annotations

import os
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["print_users_traceback"]


def print_users_traceback(error: BaseException) -> None:
    """Print an exception without the frames of the replay, which precede the code of the actor."""
    traceback.print_exception(error.with_traceback(_users_part(error)))


def _users_part(error: BaseException) -> TracebackType | None:
    """Return the traceback from the first frame that is not in this package."""
    package = os.path.dirname(os.path.dirname(__file__))
    step = error.__traceback__
    while step is not None and step.tb_frame.f_code.co_filename.startswith(package):
        step = step.tb_next
    return step or error.__traceback__
