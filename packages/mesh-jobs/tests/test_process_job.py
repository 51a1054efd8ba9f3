"""Hosts that are processes of this machine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from mesh_jobs import Job, ProcessJob
from mesh_jobs.testing import JobConformance, JobFactory, worker_pids


class TestProcessJob(JobConformance):
    @pytest.fixture
    def factory(self, tmp_path: Path) -> JobFactory:
        def make(meshes: dict[str, int], name: str, *, ttl_s: float = 600.0) -> Job:
            return ProcessJob(meshes, name=name, ttl_s=ttl_s, folder=tmp_path / name)

        return make

    def workers(self, order_id: str) -> int:
        return len(worker_pids(order_id))

    def lose_host(self, job: Job, mesh: str, rank: int) -> None:
        order_id = job.status().order_id
        os.kill(worker_pids(order_id)[mesh, rank], signal.SIGKILL)
