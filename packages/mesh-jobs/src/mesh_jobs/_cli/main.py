"""The entry point of the command `mesh`, which needs optional dependencies."""

from __future__ import annotations

import sys

from mesh_jobs._imports import without_collections

try:
    with without_collections():
        from mesh_jobs._cli.command_line import run_command_line
except ModuleNotFoundError as error:
    if error.name not in ("typer", "rich"):
        raise
    sys.exit(f"mesh: the command needs {error.name}: pip install 'torchmesh-jobs[cli]'")

__all__ = ["main"]


def main() -> None:
    """Run the command line, and exit with its status."""
    run_command_line()
