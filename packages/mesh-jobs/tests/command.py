"""The command `mesh`, run in a user's folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from workers import END_LIMIT_S

COMMAND = [sys.executable, "-c", "from mesh_jobs._cli.main import main; main()"]
JOB = """
from mesh_jobs import ProcessJob
job = ProcessJob({"trainers": 2}, name="demo", ttl_s=900)
two = ProcessJob({"trainers": 1, "readers": 1}, name="demo", ttl_s=900)
number = 7
"""


class Folder:
    """A user's folder in which the command is run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environment = {**os.environ, "MESH_HOME": str(path / "home"), "COLUMNS": "200"}
        self.write("job.py", JOB)

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text, encoding="utf-8")

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run the command until it exits."""
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.path,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=2 * END_LIMIT_S,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the command."""
        return subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self.path,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def said(self, *arguments: str, stdin: str = "") -> str:
        """Run the command, which must succeed, and return its output."""
        run = self.run(*arguments, stdin=stdin)
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    def json(self, *arguments: str) -> Any:
        """Run the command with `--json`, and return its parsed output."""
        return json.loads(self.run(arguments[0], "--json", *arguments[1:]).stdout)
