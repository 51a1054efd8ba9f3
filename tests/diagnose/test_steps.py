"""The steps of training, which optimizers and data loaders of PyTorch report automatically."""

from __future__ import annotations

import threading

import torch
from torch import distributed
from torch.utils.data import DataLoader, Dataset

from mesh_core import Actor, endpoint, this_host
from mesh_jobs import setup_torch_distributed
from mesh_telemetry import Telemetry

LIMIT_S = 60.0
READ_S = 0.02
STEPS = 8


class Batches(Dataset[int]):
    """Batches that take some time to read."""

    def __init__(self, read_s: float) -> None:
        self.read_s = read_s

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, at: int) -> int:
        # The time of a read.
        threading.Event().wait(self.read_s)
        return at


class Trainer(Actor):
    """A rank; the first one reads slowly."""

    def __init__(self) -> None:
        distributed.init_process_group("gloo")

    @endpoint
    def train(self) -> None:
        """Train two models on the same batches."""
        rank = distributed.get_rank()
        weights = torch.zeros(4, requires_grad=True)
        first = torch.optim.SGD([weights], lr=0.1)
        second = torch.optim.Adam([weights], lr=0.1)
        for _ in DataLoader(Batches(READ_S if rank == 0 else 0.0), batch_size=1):
            weights.grad = torch.ones(4)
            distributed.all_reduce(weights.grad)
            first.step()
            second.step()

    @endpoint
    def train_compiled(self) -> float:
        """Take steps of an optimizer that is compiled."""
        weights = torch.zeros(4, requires_grad=True)
        weights.grad = torch.ones(4)
        optimizer = torch.optim.SGD([weights], lr=1.0)
        step = torch.compile(optimizer.step, backend="eager")
        for _ in range(STEPS):
            step()
        return float(weights.sum())


def test_steps_show_what_each_rank_waits_for() -> None:
    with Telemetry() as telemetry:
        procs = this_host().spawn_procs({"gpus": 2}, name="train")
        setup_torch_distributed(procs)
        trainers = procs.spawn("trainers", Trainer)
        trainers.train.call().get(timeout=LIMIT_S)
        rows = telemetry.query(
            "select rank, step, duration_us, input_us, communication_us, compute_us from steps "
            "where mesh = 'train' order by rank, step"
        ).table.to_pylist()
        found = [(row["rank"], row["step"]) for row in rows]
        assert found == [(rank, step) for rank in (0, 1) for step in range(1, STEPS)]
        for row in rows:
            parts = row["input_us"] + row["communication_us"] + row["compute_us"]
            assert abs(parts - row["duration_us"]) <= 3
            if row["rank"] == 0:
                assert row["input_us"] >= READ_S * 1e6
        slow_us, waiting_us = (
            sum(row["communication_us"] for row in rows if row["rank"] == rank) for rank in (0, 1)
        )
        assert waiting_us > slow_us + READ_S * 1e6
        procs.stop().get(timeout=LIMIT_S)


def test_steps_of_a_compiled_optimizer_are_recorded_and_not_disturbed() -> None:
    with Telemetry() as telemetry:
        procs = this_host().spawn_procs(name="train")
        setup_torch_distributed(procs)
        trainer = procs.spawn("trainers", Trainer)
        assert trainer.train_compiled.call_one().get(timeout=LIMIT_S) == -4.0 * STEPS
        rows = telemetry.query("select step from steps where mesh = 'train'").table
        assert sorted(rows["step"].to_pylist()) == list(range(1, STEPS))
        procs.stop().get(timeout=LIMIT_S)
