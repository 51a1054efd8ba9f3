"""The commands `case`, `replay` and `schedules`, which mesh-core also offers by itself."""

from __future__ import annotations

import os
import sys

import typer

__all__ = ["case", "replay", "schedules"]


def case(context: typer.Context) -> None:
    """List, show and compare cases of recorded failures."""
    _become("mesh_core.case", context.args)


def replay(context: typer.Context) -> None:
    """Run a recorded actor again, here and without its cluster."""
    _become("mesh_core.replay", context.args)


def schedules(context: typer.Context) -> None:
    """Run recorded actors together in other orders, and print one that fails."""
    _become("mesh_core.schedules", context.args)


def _become(module: str, arguments: list[str]) -> None:
    """Replace this process, so that a debugger owns the terminal."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
