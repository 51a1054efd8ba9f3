"""A user's folder in which a job is applied and the `mesh` command is run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LIMIT_S = 60.0

_COMMAND = [sys.executable, "-c", "from mesh_jobs._cli.main import main; main()"]
_JOB = """
from mesh_jobs import ProcessJob
job = ProcessJob({"trainers": 2, "readers": 1}, name="demo", ttl_s=300, env={ENV})
"""


class JobFolder:
    """The folder; the command finds this package by its declared entry points, installed or not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        package = _declared(path / "package")
        paths = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment = {
            **os.environ,
            "MESH_HOME": str(path / "home"),
            "MESH_FS_CACHE": str(path / "chunks"),
            "COLUMNS": "300",
            "PYTHONPATH": os.pathsep.join(paths),
        }
        env = {"MESH_FS_CACHE": str(path / "chunks")}
        (path / "job.py").write_text(_JOB.replace("{ENV}", repr(env)))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command to completion."""
        return subprocess.run(
            [*_COMMAND, *arguments],
            cwd=self.path,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * LIMIT_S,
        )

    def output(self, *arguments: str) -> str:
        """Run the command, which must succeed, and return its output."""
        run = self.run(*arguments)
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    def json(self, *arguments: str) -> Any:
        """Run the command with `--json`, and parse its output."""
        return json.loads(self.output(*arguments, "--json"))


@contextmanager
def applied_job(path: Path) -> Iterator[JobFolder]:
    """Apply a job with two meshes."""
    folder = JobFolder(path)
    folder.output("apply")
    try:
        yield folder
    finally:
        folder.output("kill")


def _declared(package: Path) -> Path:
    """Write the entry points of this package into a folder for the module path."""
    declared = Path(__file__).parents[1] / "pyproject.toml"
    groups = tomllib.loads(declared.read_text())["project"]["entry-points"]
    metadata = package / "mesh_fs-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mesh-fs\nVersion: 0.1.0\n")
    lines = []
    for group, points in groups.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return package
