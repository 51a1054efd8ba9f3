"""The job of the machine: a command that runs as it would locally."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Job:
    """A command with its working directory and environment variables."""

    command: Sequence[str]
    folder: Path
    variables: Mapping[str, str]

    @property
    def script(self) -> str:
        """The shell script that runs the command."""
        names = [name for name in self.variables if re.fullmatch(r"[A-Za-z_]\w*", name)]
        exports = [f"export {name}={shlex.quote(self.variables[name])}" for name in names]
        steps = [*exports, f"cd {shlex.quote(str(self.folder))}"]
        return "\n".join([*steps, f"exec {shlex.join(self.command)}", ""])


def here(command: Sequence[str]) -> Job:
    """Return a job that runs the command as this process would.

    Its output is a serial line without colours, whose width differs from the local terminal.
    """
    columns = str(shutil.get_terminal_size().columns)
    return Job(command, Path.cwd(), {**os.environ, "TERM": "dumb", "COLUMNS": columns})
