"""The example that trains on handwritten digits, with another job definition."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.programs import missing_line
from tools.workspace import ROOT

EXAMPLE = ROOT / "examples" / "train_digits.py"
#: The line of the example that creates the job.
JOB_LINE = 'job = LocalJob(["trainers"])'
IMPORT_LINE = "from mesh_jobs import LocalJob"
LIMIT_S = 240
_FIRST_STEP = re.compile(r"first step was done after ([0-9.]+) s")


def with_job(folder: Path, job: str, imported: str) -> Path:
    """Write the example with another job definition into the folder, and return its path."""
    source = EXAMPLE.read_text()
    assert source.count(JOB_LINE) == source.count(IMPORT_LINE) == 1
    source = source.replace(IMPORT_LINE, f"from mesh_jobs import {imported}")
    script = folder / EXAMPLE.name
    script.write_text(source.replace(JOB_LINE, job))
    return script


def train(script: Path) -> float:
    """Run the script successfully, and return the seconds from creating the job to the first step.

    Raises:
        AssertionError: The script failed or did not print the expected output.
    """
    ended = subprocess.run(
        [sys.executable, str(script)],
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    shown = [
        line.removeprefix("#") for line in EXAMPLE.read_text().split("# prints:\n")[1].split("\n")
    ]
    missing = missing_line(ended.stdout, [line for line in shown if line.strip()])
    assert missing is None, f"{missing!r} was not printed:\n{ended.stdout}"
    found = _FIRST_STEP.search(ended.stdout)
    assert found is not None
    return float(found[1])


def train_twice(script: Path) -> None:
    """Run the script twice, the second time on the hosts of the first run; print both times."""
    first, second = train(script), train(script)
    print(f"first step after {first:.2f} s, then after {second:.2f} s: {second / first:.1%}")
