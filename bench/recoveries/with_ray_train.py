"""The training under Ray Train: `python with_ray_train.py FOLDER SEED`, with `ray[train]`.

Checkpoints are reported as in "Saving and Loading Checkpoints" of its documentation.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import torch
from kills import KILLS, RANKS, SAVE_EVERY, STEPS
from ray import train
from ray.train.torch import TorchConfig, TorchTrainer
from training import GPTTraining


def train_rank(config: dict[str, Any]) -> None:
    """Train from the latest checkpoint, if there is one."""
    training = GPTTraining(config["folder"], config["seed"])
    first = 0
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder) / "state.pt")
        training.load_state_dict(saved["state"])
        first = saved["step"]
    training.join()
    for step in range(first, STEPS):
        loss = training.train_step(step)
        if (step + 1) % SAVE_EVERY == 0:
            report(training, step + 1, loss)


def report(training: GPTTraining, step: int, loss: float) -> None:
    """Report a checkpoint, which rank 0 writes."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if training.rank == 0:
            state = {"state": training.state_dict(), "step": step}
            torch.save(state, Path(folder) / "state.pt")
            checkpoint = train.Checkpoint.from_directory(folder)
        train.report({"loss": loss}, checkpoint=checkpoint)


if __name__ == "__main__":
    ray.init(num_cpus=RANKS, include_dashboard=False)
    trainer = TorchTrainer(
        train_rank,
        train_loop_config={"folder": sys.argv[1], "seed": int(sys.argv[2])},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=train.ScalingConfig(num_workers=RANKS),
        run_config=train.RunConfig(
            name="gpt",
            storage_path=str(Path(sys.argv[1]).resolve()),
            failure_config=train.FailureConfig(max_failures=KILLS),
        ),
    )
    trainer.fit()
    ray.shutdown()
