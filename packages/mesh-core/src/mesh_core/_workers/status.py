"""The lines in which a worker reports its state, on its standard output."""

from __future__ import annotations

import select
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

__all__ = ["report"]

# A pipe accepts at least 4,096 bytes when it is ready for writing. Two threads may write at a time.
_LEN_MAX = 2000
_READER_LIMIT_MS = 100


def report(what: str) -> None:
    """Print the state of the worker, or drop the line if the output is not read.

    A program that starts a worker through a pipe may stop reading the pipe. The pipe is full after
    a few hundred lines, but the worker must continue to serve jobs.
    """
    # The stream is missing or closed, or its reader is gone.
    with suppress(AttributeError, OSError, ValueError):
        if _is_writable(sys.stdout):
            print(f"mesh worker {what}"[:_LEN_MAX], flush=True)


def _is_writable(stream: TextIO) -> bool:
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return True  # It is in memory, as in notebooks and tests.
    ready = select.poll()
    ready.register(descriptor, select.POLLOUT)
    return bool(ready.poll(_READER_LIMIT_MS))
