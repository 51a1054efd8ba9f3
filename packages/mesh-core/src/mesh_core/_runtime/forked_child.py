"""Exit of a child that was forked in an endpoint and is not a member of the job."""

from __future__ import annotations

import os
import sys
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

__all__ = ["leave_fork"]


def leave_fork(error: BaseException | None) -> NoReturn:
    """Exit from a forked child whose copy of the endpoint has ended.

    `atexit` handlers belong to the parent and do not run, as in a child of `multiprocessing`.
    Threads are not joined, because the child has no other thread.

    Args:
        error: The exception that the endpoint raised in the child, if any. `SystemExit` sets the
            exit status.
    """
    status = 0
    if isinstance(error, SystemExit):
        status = _status_of(error)
    elif error is not None:
        traceback.print_exception(error)
        status = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            # The user has closed the stream, or it has no reader.
            continue
    os._exit(status)


def _status_of(request: SystemExit) -> int:
    """Return the exit status that the interpreter would use."""
    if request.code is None:
        return 0
    if isinstance(request.code, int):
        return request.code & 0xFF
    print(request.code, file=sys.stderr)
    return 1
