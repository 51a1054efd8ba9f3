"""`mesh debug` as a user has it."""

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
    """How a command has ended."""

    returncode: int
    stdout: str
    stderr: str


class _Door:
    """What mesh-jobs gives to commands."""

    def print_json(self, value: Any) -> None:
        print(json.dumps(value))

    def print_table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        for row in (columns, *rows):
            print("  ".join(row))


class MeshDebug:
    """Runs the command."""

    def run(self, *words: str, typed: str = "") -> Done:
        """Runs it to its end, in this process."""
        result = CliRunner().invoke(debug, words, input=typed, obj=_Door())
        if isinstance(result.exception, MeshError):
            # As mesh-jobs tells it.
            return Done(1, result.stdout, f"mesh: {result.exception}\n")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Done(result.exit_code, result.stdout, result.stderr)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Starts it in a process of its own, with somebody at its terminal."""
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
