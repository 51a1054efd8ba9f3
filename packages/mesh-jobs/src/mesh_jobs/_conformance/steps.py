"""Steps that several conformance tests share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mesh_jobs._atomic_files import read_json
from mesh_jobs._job.job import Job
from mesh_jobs._job.status import JobStatus

__all__ = [
    "PAUSE_S",
    "addresses",
    "allocation_id_of",
    "place_of",
    "run_program",
    "up",
    "wait_for",
]

#: The poll interval for a scheduler.
PAUSE_S = 0.1


def place_of(job: Job) -> dict[str, Any]:
    """Return the arguments of `job_load` that find the job."""
    path = Path(job.folder)
    return {"context": path.name, "folder": path.parent.parent}


def allocation_id_of(job: Job) -> str:
    """Return the id of the allocation, even if the scheduler has not granted it yet."""
    stored = read_json(Path(job.folder, "job.json"))
    assert stored["schema"] == 2
    return str(stored["allocation_id"])


def addresses(status: JobStatus) -> list[str | None]:
    """Return the addresses of the workers, in the order of the hosts."""
    return [host.address for host in status.hosts]


def up(job: Job, timeout_s: float) -> JobStatus:
    """Wait until all hosts are up, without attaching to them."""
    wait_for(lambda: job.status().is_up, timeout_s)
    return job.status()


def wait_for(condition: Callable[[], bool], limit_s: float) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, f"the condition was not met in {limit_s:g} s"
        # Each check may query a scheduler.
        time.sleep(PAUSE_S)


def run_program(action: str, job: Job, *, dies: bool = False) -> Any:
    """Run a program of the conformance tests until it exits, and return its output."""
    place = place_of(job)
    spec = json.dumps(job.spec.to_json())
    words = [action, os.fspath(place["folder"]), str(place["context"]), spec]
    command = [sys.executable, "-m", "mesh_jobs._conformance.program", *words]
    # A short lease frees the hosts of a killed program soon.
    env = {**os.environ, "MESH_HOST_LEASE_S": "2"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert (done.returncode == -9) is dies, f"{done.returncode}: {done.stdout}{done.stderr}"
    said = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(said[-1]) if said else None
