"""Three ranks train, and each step waits for one of them."""

import os

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
        if self.rank == 0 and number == 4:
            self.read_batch()
        distributed.all_reduce(torch.ones(4))

    def read_batch(self) -> None:
        source, _ = os.pipe()
        os.read(source, 10)


with broken_program():
    procs = this_host().spawn_procs({"gpus": 3}, name="train")
    setup_torch_distributed(procs)
    procs.spawn("trainers", Trainer).train.call()
