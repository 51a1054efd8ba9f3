"""Jobs whose only host is the program's own machine."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mesh_jobs import Job, LocalJob
from mesh_jobs._client.process import running_client
from mesh_jobs.testing import JobConformance, JobFactory


class TestLocalJob(JobConformance):
    hosts_max = 1
    has_workers = False

    @pytest.fixture
    def factory(self, tmp_path: Path) -> JobFactory:
        def make(meshes: dict[str, int], name: str, *, ttl_s: float = 600.0) -> Job:
            # There is no lease, because the host ends with the program.
            return LocalJob(meshes, name=name, folder=tmp_path / name)

        return make

    def workers(self, allocation_id: str) -> int:
        """Return 1 if a client script runs; no other process outlives the program."""
        return int(running_client(allocation_id) is not None)

    def lose_host(self, job: Job, mesh: str, rank: int) -> None:
        pytest.skip("its host is the machine of the test, and ends with it")

    def block_scheduler(self) -> AbstractContextManager[None]:
        pytest.skip("no scheduler is asked")

    def exhaust(self, factory: JobFactory) -> Job:
        pytest.skip("nothing has to be waited for")
