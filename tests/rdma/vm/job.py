"""What the machine is to do: a command, as it would run here."""

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
    """A command, the folder it runs in, and its variables."""

    command: Sequence[str]
    folder: Path
    variables: Mapping[str, str]

    @property
    def script(self) -> str:
        """What a shell runs for it."""
        names = [name for name in self.variables if re.fullmatch(r"[A-Za-z_]\w*", name)]
        exports = [f"export {name}={shlex.quote(self.variables[name])}" for name in names]
        steps = [*exports, f"cd {shlex.quote(str(self.folder))}"]
        return "\n".join([*steps, f"exec {shlex.join(self.command)}", ""])


def here(command: Sequence[str]) -> Job:
    """Returns the job of running a command as it would run in this process.

    It writes to a serial line, which knows neither colours nor the width of the terminal here.
    """
    columns = str(shutil.get_terminal_size().columns)
    return Job(command, Path.cwd(), {**os.environ, "TERM": "dumb", "COLUMNS": columns})
