"""Training on nodes: an administrator drains one of them, and another one loses power."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from torch import distributed

from mesh_core.testing import wait_until
from mesh_jobs import HostDraining
from mesh_tensor.training import FaultTolerantTraining
from tests.jobs.slurm.jobs import Jobs, drained
from tests.jobs.slurm.remote import RemoteCluster

LIMIT_S = 60.0


class Regression:
    """Fits a linear function."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.weight = torch.randn(8)

    def join(self) -> None:
        self.size = distributed.get_world_size()

    def train_step(self, step: int) -> float:
        samples = torch.randn(16, 8)
        error = samples @ self.weight - samples.sum(1)
        gradient = (error[:, None] * samples).mean(0)
        distributed.all_reduce(gradient)
        self.weight = self.weight - 0.05 * gradient / self.size
        return error.square().mean().item()

    def state_dict(self) -> Mapping[str, Any]:
        return {"weight": self.weight}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.weight = state["weight"]


@pytest.mark.timeout(180)
def test_ranks_leave_nodes_that_are_drained_or_lost(jobs: Jobs, cluster: RemoteCluster) -> None:
    job = jobs({"trainers": 3}).apply()
    hosts = job.state(timeout=LIMIT_S).trainers
    procs = hosts.spawn_procs(name="trainers")
    over = threading.Event()
    left: list[Future[None]] = []

    def drain(host: HostDraining) -> None:
        left.append(training.drain(hosts.slice(hosts=host.rank)))

    with FaultTolerantTraining(procs, Regression, min_ranks=1) as training:

        def train() -> None:
            while not over.is_set():
                training.run(training.step + 20)

        thread = threading.Thread(target=train)
        thread.start()
        try:
            wait_until(lambda: training.steps_done > 5, LIMIT_S)
            first, middle, last = training.host_names
            with job.on_leaving(drain, poll_s=1.0), drained(middle):
                wait_until(lambda: bool(left), LIMIT_S)
                left[0].result(LIMIT_S)
            assert training.host_names == [first, last]
            assert not training.recoveries
            # While the ranks form a group, one of them cannot be released from a dead host.
            reached = training.steps_done
            wait_until(lambda: training.steps_done > reached, LIMIT_S)
            cluster.power_cut(last)
            wait_until(lambda: bool(training.recoveries), LIMIT_S)
            assert training.recoveries[0].kind == "host"
            assert training.host_names == [first]
            reached = training.steps_done
            wait_until(lambda: training.steps_done > reached + 5, LIMIT_S)
        finally:
            over.set()
            thread.join()
        assert training.losses[max(training.losses)] < training.losses[0] / 10
