"""The `mesh debug` command as users run it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from typer.testing import CliRunner

from mesh_core import MeshError
from mesh_telemetry._debug.commands import debug

__all__ = ["Done", "MeshDebug"]

_PROGRAM = "from mesh_telemetry._debug.commands import debug; debug()"


class Done(NamedTuple):
    """The result of a command."""

    returncode: int
    stdout: str
    stderr: str


class CommandContext:
    """The context object that mesh-jobs passes to commands."""

    def print_json(self, value: Any) -> None:
        print(json.dumps(value))

    def print_table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        for row in (columns, *rows):
            print("  ".join(row))


class MeshDebug:
    """Runs the command."""

    def run(self, *words: str, typed: str = "") -> Done:
        """Run the command to completion in this process."""
        result = CliRunner().invoke(debug, words, input=typed, obj=CommandContext())
        if isinstance(result.exception, MeshError):
            # mesh-jobs reports errors in this format.
            return Done(1, result.stdout, f"mesh: {result.exception}\n")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Done(result.exit_code, result.stdout, result.stderr)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start the command in a separate process, with a user at its terminal."""
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
