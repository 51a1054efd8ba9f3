"""Hosts of a job that are pods: found, used, lost, replaced and given back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from mesh_core import Actor, ConfigError, endpoint
from mesh_jobs import (
    ImageSpec,
    JobEnded,
    JobError,
    JobPending,
    KubernetesJob,
    SchedulerUnreachable,
)

from tests.jobs.kube.cluster import PATIENCE_S, Cluster, eventually

IMAGE = ImageSpec("mesh-test", python=sys.executable)

Jobs = Callable[..., KubernetesJob]


class Where(Actor):
    @endpoint
    def rank(self) -> int:
        return int(os.environ["MESH_RANK"])

    @endpoint
    def secret(self) -> str | None:
        return os.environ.get("MESH_WORKER_SECRET")


@pytest.fixture
def jobs(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Jobs]:
    """Makes jobs that are given back after the test."""
    made: list[KubernetesJob] = []

    def make(hosts: int = 1, **settings: Any) -> KubernetesJob:
        settings = {"kubeconfig": cluster.kubeconfig, "folder": tmp_path, "name": "test"} | settings
        mesh = {"image_spec": IMAGE} | settings.pop("mesh", {})
        job = KubernetesJob(namespace, PATIENCE_S, **settings)
        job.add_mesh("workers", hosts, **mesh)
        made.append(job)
        return job

    yield make
    for job in made:
        job.kill()


def _ranks(job: KubernetesJob) -> list[int]:
    actors = job.state().workers.spawn_procs({"procs": 1}).spawn("where", Where)
    found = list(actors.rank.call().get(timeout=PATIENCE_S).values())
    assert set(actors.secret.call().get(timeout=PATIENCE_S).values()) == {None}
    actors.stop().get(timeout=PATIENCE_S)
    return found


@pytest.mark.parametrize("workload", ["job", "statefulset", "pods"])
def test_pods_are_hosts_until_they_are_given_back(
    cluster: Cluster, namespace: str, jobs: Jobs, workload: str
) -> None:
    job = jobs(2, workload=workload)
    assert _ranks(job) == [0, 1]
    assert "mesh worker serves" in job.logs("workers", 1)
    job.kill()
    eventually(lambda: not cluster.leftovers(namespace))
