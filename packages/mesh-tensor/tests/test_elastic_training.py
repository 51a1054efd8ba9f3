"""Ranks join and leave a training while it runs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from mesh_core import ProcMesh, this_host
from mesh_core.testing import kill_proc, wait_until
from mesh_tensor.training import (
    DiskCheckpoints,
    ElasticSampler,
    FaultTolerantTraining,
    TrainingFailed,
)

SIZE = 2
LIMIT_S = 60.0
#: The step before which a rank is killed, once.
FAULT = (8, 1)


class Regression:
    """Fits a linear function; the mean gradient does not depend on the number of ranks."""

    def __init__(self) -> None:
        self.create()
        self.sampler = ElasticSampler(120, 12, seed=1)
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(120, 6, generator=generator)

    def create(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(6, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def join(self) -> None:
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    def loss(self, step: int) -> torch.Tensor:
        chosen = self.inputs[self.sampler.indices(step, self.rank, self.size)]
        return (self.model(chosen) - chosen.sum(1, keepdim=True)).square().mean()

    def train_step(self, step: int) -> float:
        self.optimizer.zero_grad()
        loss = self.loss(step)
        loss.backward()
        for parameter in self.model.parameters():
            distributed.all_reduce(parameter.grad)
            parameter.grad /= self.size
        self.optimizer.step()
        return loss.item()

    def state_dict(self) -> Mapping[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


class ShardedRegression(Regression):
    """The same with FSDP: each rank has a part of the weights and of the momentum."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.mark = folder / "was_killed"

    def create(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(6, 2)
        if distributed.is_initialized():
            fully_shard(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def join(self) -> None:
        super().join()
        self.create()

    def train_step(self, step: int) -> float:
        if (step, self.rank) == FAULT and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self.optimizer.zero_grad()
        loss = self.loss(step)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def state_dict(self) -> Mapping[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    """The processes with which training begins."""
    started = this_host().spawn_procs({"gpus": SIZE}, name="first")
    yield started
    started.stop().get()


@pytest.fixture(scope="module")
def more() -> Iterator[ProcMesh]:
    """Processes that join."""
    started = this_host().spawn_procs({"gpus": SIZE}, name="more")
    yield started
    started.stop().get()


def wait_for(training: FaultTolerantTraining, change: Future[None]) -> None:
    """Train step by step until a change of the ranks has taken effect."""
    while not change.done():
        training.run(training.step + 1)
    change.result()


def train_until(training: FaultTolerantTraining, is_over: Callable[[], bool]) -> threading.Thread:
    """Train in a thread until a condition is true."""

    def train() -> None:
        while not is_over():
            training.run(training.step + 20)

    thread = threading.Thread(target=train)
    thread.start()
    return thread


def test_ranks_join_and_leave_between_two_steps(procs: ProcMesh, more: ProcMesh) -> None:
    over = threading.Event()
    with FaultTolerantTraining(procs, Regression) as training:
        thread = train_until(training, over.is_set)
        sizes = [training.size]
        try:
            for change in (
                lambda: training.add(more),
                lambda: training.drain(more.slice(gpus=0)),
                lambda: training.drain(procs),
            ):
                change().result(LIMIT_S)
                sizes.append(training.size)
                reached = training.steps_done
                wait_until(lambda at=reached: training.steps_done > at + 5, LIMIT_S)  # type: ignore[misc]
        finally:
            over.set()
            thread.join()
        assert sizes == [2, 4, 3, 1]
        assert not training.recoveries
        losses = training.losses
        assert sorted(losses) == list(range(training.step))
        state = training.state_dict()["model"]
    with FaultTolerantTraining(procs, Regression) as undisturbed:
        undisturbed.run(training.step)
        torch.testing.assert_close(state, undisturbed.state_dict()["model"])


@pytest.mark.parametrize("changes", [False, True], ids=["killed", "killed_then_resized"])
def test_fsdp_shards_are_restored_and_resharded(
    procs: ProcMesh, more: ProcMesh, tmp_path: Path, changes: bool
) -> None:
    disk = DiskCheckpoints(str(tmp_path / "checkpoints"), every=1000)
    with FaultTolerantTraining(
        procs, ShardedRegression, tmp_path, is_sharded=True, disk=disk
    ) as training:
        training.run(20)
        (recovery,) = training.recoveries
        assert (recovery.kind, recovery.source) == ("process", "memory")
        assert recovery.lost_steps <= 1
        if changes:
            wait_for(training, training.add(more))
            assert training.size == 2 * SIZE
            training.run(training.step + 5)
            wait_for(training, training.drain(procs))
            assert training.size == SIZE
            training.run(training.step + 5)
        last = training.step
        losses = training.losses
    with FaultTolerantTraining(procs, Regression) as undisturbed:
        undisturbed.run(last)
        # The loss of rank 0 is for its own samples, whose number depends on the number of ranks.
        assert losses[19] == pytest.approx(undisturbed.losses[19])
        assert losses[last - 1] == pytest.approx(undisturbed.losses[last - 1], rel=1e-4)


def test_drained_processes_may_die_or_be_stopped(more: ProcMesh) -> None:
    procs = this_host().spawn_procs({"gpus": 2}, name="leaving")
    with FaultTolerantTraining(more, Regression) as training:
        training.run(2)
        wait_for(training, training.add(procs))
        wait_for(training, training.drain(procs))
        kill_proc(procs, 0)
        # An unhandled failure would end the program.
        training.run(training.step + 200)
        assert not training.recoveries
        procs.stop().get()


def test_impossible_changes_are_rejected(procs: ProcMesh, more: ProcMesh) -> None:
    with FaultTolerantTraining(procs, Regression) as training:
        # Otherwise it may be closed while the ranks still import torch, which is an error.
        training.run(1)
        with pytest.raises(ValueError, match="take part in the training already"):
            training.add(procs)
        with pytest.raises(ValueError, match="no rank of the training is on"):
            training.drain(more)
        with pytest.raises(ValueError, match="add others first"):
            training.drain(procs)
        pending = training.drain(procs.slice(gpus=0))
    with pytest.raises(TrainingFailed, match="was closed"):
        pending.result(0)
    sharded = FaultTolerantTraining(procs, Regression, is_sharded=True)
    with sharded, pytest.raises(ValueError, match="pass disk=DiskCheckpoints"):
        sharded.add(more)
    for wrong in (0, 3):
        with pytest.raises(ValueError, match=f"min_ranks={wrong} is not between 1 and 2"):
            FaultTolerantTraining(procs, Regression, min_ranks=wrong)
