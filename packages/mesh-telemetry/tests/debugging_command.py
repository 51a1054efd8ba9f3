"""`mesh debug` as a user has it, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

__all__ = ["MeshDebug"]

_LIMIT_S = 100.0
# As mesh-jobs runs it, also where the package is not installed anew since it has this command.
_PROGRAM = """
import sys
from mesh_core import MeshError
from mesh_jobs._cli.door import JobCommands
from mesh_telemetry._debug_commands import debug
try:
    debug(obj=JobCommands(), prog_name="mesh debug")
except MeshError as error:
    print(f"mesh: {error}", file=sys.stderr)
    sys.exit(1)
"""


class MeshDebug:
    """Runs the command."""

    def run(self, *words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        """Runs it to its end."""
        return subprocess.run(
            [sys.executable, "-c", _PROGRAM, *words],
            input=typed,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Starts it, with somebody at its terminal."""
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
