"""The command `mesh dash`, which opens the dashboard of a program of this user."""

from __future__ import annotations

import os
import sys
import webbrowser
from typing import Annotated

# mesh-jobs, whose command line loads this module, depends on typer.
import typer

from mesh_telemetry._dash.dashboard import dashboard_url
from mesh_telemetry._serve.served import served_program

__all__ = ["dash"]


def dash(
    pid: Annotated[
        int | None, typer.Option(help="Which program, where several can be looked at.")
    ] = None,
    is_opened: Annotated[
        bool, typer.Option("--open/--no-open", help="Open a browser, where there is one.")
    ] = True,
) -> None:
    """Print the address at which a browser shows a running program, and open it.

    Of this user, on this machine, that serves telemetry. The address lets in who has it.
    """
    served = served_program(pid)
    url = dashboard_url(served.url, served.token)
    print(url)
    if is_opened and _has_screen() and not webbrowser.open(url):
        print("no browser was found: open the address in one", file=sys.stderr)


def _has_screen() -> bool:
    """Return whether there is a display: a text browser would take over the terminal."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
