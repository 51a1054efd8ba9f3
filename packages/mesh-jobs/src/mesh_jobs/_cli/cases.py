"""The commands `case` and `replay`, which mesh-core also offers without this package."""

from __future__ import annotations

import typer

from mesh_core import case as _case
from mesh_core import replay as _replay

__all__ = ["case", "replay"]


def case(context: typer.Context) -> None:
    """List, show and compare cases of recorded failures."""
    raise typer.Exit(_case.main(context.args))


def replay(context: typer.Context) -> None:
    """Run a recorded actor again, here and without its cluster."""
    raise typer.Exit(_replay.main(context.args))
