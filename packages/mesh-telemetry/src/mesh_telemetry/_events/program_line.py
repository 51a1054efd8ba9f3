"""The command line of a recorded program."""

from __future__ import annotations

from pathlib import Path

__all__ = ["program_line"]


def program_line() -> str:
    """Return the command line of this program."""
    return Path("/proc/self/cmdline").read_text().replace("\0", " ").strip()
