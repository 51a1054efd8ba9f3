"""The example trains on nodes of the cluster, twice in the same allocation."""

from pathlib import Path

import pytest

from mesh_jobs import job_load
from tests.jobs.digits import LIMIT_S, train_twice, with_job


@pytest.mark.usefixtures("cluster")
@pytest.mark.timeout(2 * LIMIT_S)
def test_the_example_trains_on_nodes(tmp_path: Path) -> None:
    script = with_job(tmp_path, 'job = SlurmJob({"trainers": 2}, time_limit=10)', "SlurmJob")
    try:
        train_twice(script)
    finally:
        job_load(folder=tmp_path).kill()
