"""Commands about recorded failures, which mesh-core also offers without this package.

Only `case fetch` is a command of this package.
"""

from __future__ import annotations

import os
import sys

import typer

from mesh_jobs._cli.case_fetch import fetch

__all__ = ["case", "record", "replay", "schedules"]

_HELP = ("-h", "--help")


def case(context: typer.Context) -> None:
    """List, show, compare, save and fetch cases of recorded failures."""
    if context.args[:1] == ["fetch"]:
        app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        app.command(context_settings={"help_option_names": list(_HELP)})(fetch)
        app(context.args[1:], prog_name="mesh case fetch")
    if not context.args or context.args[0] in _HELP:
        sys.stdout.write("mesh case fetch copies cases from the hosts of a job: see its --help\n\n")
    _become("mesh_core.case", context.args)


def record(context: typer.Context) -> None:
    """Make a running program save a case of a recorded actor: record save MESH[RANK]."""
    if context.args[:1] != ["save"]:
        raise typer.BadParameter("write mesh record save MESH[RANK]")
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
