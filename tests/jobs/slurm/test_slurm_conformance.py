"""SLURM passes the tests that every backend must pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mesh_jobs import Job, SlurmJob, SlurmOptions
from mesh_jobs.spi import read_json
from mesh_jobs.testing import JobConformance, JobFactory
from tests.jobs.slow_variant import OF_ANY_BACKEND, with_slow
from tests.jobs.slurm.jobs import ids, said
from tests.jobs.slurm.remote import RemoteCluster


@with_slow(*OF_ANY_BACKEND)
class TestSlurmJob(JobConformance):
    up_s = 30.0

    @pytest.fixture(autouse=True)
    def _on_cluster(self, cluster: RemoteCluster) -> None:
        self.cluster = cluster

    @pytest.fixture
    def factory(self, tmp_path: Path) -> JobFactory:
        def make(meshes: dict[str, int], name: str, *, ttl_s: float = 600.0) -> Job:
            folder = tmp_path / name
            return SlurmJob(meshes, name=name, time_limit=10, ttl_s=ttl_s, folder=folder)

        self.folder = tmp_path
        return make

    def machines_tmp(self) -> Path:
        return self.cluster.shared

    def leftovers(self) -> list[str]:
        running = [one for node in self.cluster.nodes() for one in self.cluster.commands_on(node)]
        return running + ids()

    def workers(self, allocation_id: str) -> int:
        jobs = [line.split() for line in said("squeue", "-h", "--format=%j %D").splitlines()]
        return sum(int(nodes) for name, nodes in jobs if allocation_id in name)

    def lose_host(self, job: Job, mesh: str, rank: int) -> None:
        told = read_json(Path(job.folder, "workers", f"{mesh}-{rank}.json"))
        self.cluster.power_cut(told["host"])

    @contextmanager
    def block_scheduler(self) -> Iterator[None]:
        self.cluster.stop_controller()
        yield
        self.cluster.start_controller()

    def exhaust(self, factory: JobFactory) -> Job:
        later = SlurmOptions(slurm_args=["--begin=now+1hour"])
        return SlurmJob({"ones": 2}, name="later", options=later, folder=self.folder)
