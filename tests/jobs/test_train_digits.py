"""The example trains on processes of this machine, twice on the same ones."""

from pathlib import Path

import pytest

from mesh_jobs import job_load
from tests.jobs.digits import LIMIT_S, train_twice, with_job


@pytest.mark.timeout(2 * LIMIT_S)
def test_it_trains_on_processes(tmp_path: Path) -> None:
    script = with_job(tmp_path, 'job = ProcessJob({"trainers": 2})', "ProcessJob")
    try:
        train_twice(script)
    finally:
        job_load(folder=tmp_path).kill()
