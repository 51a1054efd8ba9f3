"""The command `mesh dash`, which opens the dashboard of a program of this user."""

from __future__ import annotations

import os
import sys
import webbrowser
from typing import Annotated

# mesh-jobs, whose command line loads this module, depends on typer.
import typer

from mesh_telemetry._serve.dashboard_url import dashboard_url
from mesh_telemetry._serve.program_files import served_program

__all__ = ["dash"]


def dash(
    pid: Annotated[
        int | None, typer.Option(help="The pid of the program, if several serve telemetry.")
    ] = None,
    is_opened: Annotated[
        bool, typer.Option("--open/--no-open", help="Open a browser if one is available.")
    ] = True,
) -> None:
    """Print the dashboard address of a running program, and open it in a browser.

    The program must belong to this user, run on this machine and serve telemetry. Anyone who has
    the address can open the dashboard.
    """
    served = served_program(pid)
    url = dashboard_url(served.url, served.token)
    print(url)
    if is_opened and _has_display() and not webbrowser.open(url):
        print("no browser was found: open the address yourself", file=sys.stderr)


def _has_display() -> bool:
    """Return whether there is a display: a text browser would take over the terminal."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
