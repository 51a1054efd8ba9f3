"""The standard error of pytest itself; while a test runs, file descriptor 2 is captured."""

import functools
import os

__all__ = ["uncaptured_stderr"]


@functools.cache
def uncaptured_stderr() -> int:
    """Return a descriptor of it; plugins call this first when they are configured."""
    return os.dup(2)
