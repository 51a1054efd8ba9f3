"""The output of commands: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from mesh_jobs._backend.report import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mesh_jobs._job.status import JobStatus

__all__ = ["print_json", "print_status", "print_table", "progress_console"]

_COLOURS = {Phase.PENDING: "yellow", Phase.RUNNING: "green", Phase.ENDED: "red"}


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def progress_console() -> Console:
    """Return the console for progress messages, which is separate from the output."""
    return Console(stderr=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, which is not truncated if stdout is not a terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console.width = 10_000
    console.print(table, soft_wrap=not console.is_terminal)


def print_status(status: JobStatus) -> None:
    """Print a job and its hosts."""
    colour = _COLOURS[status.state]
    console = Console(highlight=False)
    console.print(f"[bold]{status.name}[/] [{colour}]{status.state}[/]", end="")
    console.print(
        f"  {status.up} of {len(status.hosts)} hosts up, backend {status.backend}", end=""
    )
    console.print(f"  {status.reason}" if status.reason else "", markup=False)
    print_table(
        ("MESH", "RANK", "STATE", "ADDRESS", "REASON"),
        (
            (host.mesh, str(host.rank), host.state.value, host.address or "-", host.reason)
            for host in status.hosts
        ),
    )
