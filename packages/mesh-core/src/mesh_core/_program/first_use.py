"""Starts the job of a program when the program uses Mesh for the first time."""

from __future__ import annotations

from mesh_core._runtime.runtime import start_with

__all__ = ["register"]


def register() -> None:
    """Let the first use of Mesh in this process start a job, if the process has no runtime."""
    start_with(_start)


def _start() -> None:
    # Most processes that import Mesh never become the root of a job, and the modules of a root take
    # longer to import than all others together.
    from mesh_core._program.root import start_root  # noqa: PLC0415

    start_root()
