"""The entry point of the command `mesh`, which needs optional dependencies."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line, and exit with its status."""
    try:
        # The import is here because typer and rich are optional dependencies.
        from mesh_jobs._cli.command_line import run_command_line  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(
            f"mesh: the command needs {error.name}: pip install 'mesh-jobs[cli]'", file=sys.stderr
        )
        sys.exit(1)
    run_command_line()
