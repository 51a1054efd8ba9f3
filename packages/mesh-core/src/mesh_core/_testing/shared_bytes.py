"""Shared memory held by the readers of large messages, for tests that check for leaks."""

from __future__ import annotations

from mesh_core._runtime.runtime import is_running, runtime

__all__ = ["shared_bytes_in_use"]


def shared_bytes_in_use() -> int:
    """Return the bytes of large messages from this process that a receiver can still read.

    A receiver that keeps an array keeps its bytes in use. To get the number for messages that
    another process has sent, have an actor in that process call this function.
    """
    return runtime().engine.shared_bytes_in_use() if is_running() else 0
