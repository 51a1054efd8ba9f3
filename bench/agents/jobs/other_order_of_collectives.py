"""Three ranks reduce and gather; they stop in the first steps."""

import torch
from torch import distributed

from bench.agents.broken_program import broken_program
from mesh_core import Actor, endpoint, this_host
from mesh_jobs import setup_torch_distributed


class Trainer(Actor):
    def __init__(self) -> None:
        distributed.init_process_group("gloo")
        self.rank = distributed.get_rank()

    @endpoint
    def train(self) -> None:
        for step in range(20):
            self.step(step)

    def step(self, number: int) -> None:
        if self.rank == 2 and number == 5:
            self.share()
            self.reduce()
        else:
            self.reduce()
            self.share()

    def reduce(self) -> None:
        distributed.all_reduce(torch.ones(4))

    def share(self) -> None:
        distributed.broadcast(torch.ones(4), 0)


with broken_program():
    procs = this_host().spawn_procs({"gpus": 3}, name="train")
    setup_torch_distributed(procs)
    procs.spawn("trainers", Trainer).train.call()
