"""Train a small GPT with DistributedDataParallel while its processes are killed again and again.

The script kills three processes in sequence. Each time, the collectives of the other ranks are
aborted, the process is restarted, all ranks load the state of the last step from memory, and
training continues. No rank that survives is restarted, and the final weights are bitwise equal to
the weights of a run without failures.
"""

import random
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

import torch
from small_gpt import CONTEXT, GPT, loss_of, tokens
from torch import distributed, nn

from mesh_core.testing import kill_proc
from mesh_jobs import LocalJob
from mesh_tensor.training import ElasticSampler, FaultTolerantTraining

RANKS, BATCH, STEPS, KILLS = 4, 32, 120, 3


class GPTTraining:
    """The training of one rank."""

    def __init__(self) -> None:
        torch.set_num_threads(1)  # the processes share the CPU cores
        self.model = GPT()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.sampler = ElasticSampler(len(tokens) - CONTEXT, BATCH)

    def join(self) -> None:
        self.wrapped = nn.parallel.DistributedDataParallel(self.model)
        # DDP regroups the gradients after its first backward pass, and a sum of floats depends on
        # the groups. With a first pass that changes no weights, all steps have the same groups.
        self.loss(0).backward()

    def loss(self, step: int) -> torch.Tensor:
        rank, size = distributed.get_rank(), distributed.get_world_size()
        starts = self.sampler.indices(step, rank, size)
        rows = torch.stack([tokens[start : start + CONTEXT + 1] for start in starts])
        return loss_of(self.wrapped(rows[:, :-1]), rows[:, 1:])

    def train_step(self, step: int) -> float:
        self.optimizer.zero_grad()
        loss = self.loss(step)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def state_dict(self) -> Mapping[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def kill_processes(training: FaultTolerantTraining) -> None:
    """Kill a random rank whenever some steps were trained since the last failure."""
    choice = random.Random(7)
    for count in range(1, KILLS + 1):
        while len(training.losses) < count * STEPS // (KILLS + 1):
            time.sleep(0.01)
        kill_proc(procs, choice.randrange(RANKS), signal.SIGKILL)
        while len(training.recoveries) < count:
            time.sleep(0.01)


def train(kills: bool) -> Mapping[str, torch.Tensor]:
    """Train from the beginning, and return the weights."""
    with FaultTolerantTraining(procs, GPTTraining) as training:
        if kills:
            threading.Thread(target=kill_processes, args=(training,), daemon=True).start()
        training.run(STEPS)
        for one in training.recoveries:
            print(
                f"rank {one.ranks[0]} was killed after step {one.step}: training continued from "
                f"step {one.resumed_step} after {one.recovery_s:.2f} s"
            )
        print(f"loss {training.losses[0]:.2f} at first, {training.losses[STEPS - 1]:.2f} at last")
        return training.state_dict()["model"]


if __name__ == "__main__":
    # The job determines where the trainers run. For SLURM or Kubernetes only this line changes.
    hosts = LocalJob(["trainers"]).state().trainers
    procs = hosts.spawn_procs({"gpus": RANKS // hosts.size()}).flatten("rank")
    disturbed, undisturbed = train(kills=True), train(kills=False)
    print("equal weights:", all(torch.equal(disturbed[k], undisturbed[k]) for k in undisturbed))

# prints:
#   rank 2 was killed after step ...: training continued from step ... after ... s
#   rank 1 was killed after step ...: training continued from step ... after ... s
#   rank 3 was killed after step ...: training continued from step ... after ... s
#   loss 4... at first, 2... at last
#   loss 4... at first, 2... at last
#   equal weights: True
