"""How much shared memory is held by who reads large messages, for tests that look for leaks."""

from __future__ import annotations

from mesh_core._program.runtime import is_running, runtime

__all__ = ["shared_bytes_in_use"]


def shared_bytes_in_use() -> int:
    """Gives the bytes of large messages from this process that someone can still read.

    A receiver that keeps an array keeps its bytes in use; to find out who does, ask an actor to
    call this in its own process.
    """
    return runtime().engine.shared_bytes_in_use() if is_running() else 0
