"""Train with PyTorch's DistributedDataParallel in actors, over gloo.

`setup_torch_distributed` sets the variables of torchrun in each process, so `init_process_group`
needs no further arguments. An unmodified script for torchrun needs no actors: `run_spmd` runs it.
"""

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from mesh_core import Actor, current_rank, endpoint, this_host
from mesh_jobs import setup_torch_distributed

STEPS, SIZE = 50, 32


class Trainer(Actor):
    def __init__(self) -> None:
        distributed.init_process_group("gloo")
        torch.manual_seed(0)
        self.model = DistributedDataParallel(nn.Linear(10, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        torch.manual_seed(current_rank().rank)  # each rank has its own data

    @endpoint
    def train(self) -> float:
        for _ in range(STEPS):
            inputs = torch.randn(SIZE, 10)
            loss = (self.model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()

    @endpoint
    def weight(self) -> torch.Tensor:
        return self.model.module.weight.detach()

    def __cleanup__(self, error: Exception | None) -> None:
        distributed.destroy_process_group()


with this_host().spawn_procs({"gpus": 2}) as procs:
    setup_torch_distributed(procs)
    trainers = procs.spawn("trainers", Trainer)
    losses = trainers.train.call().get().values()
    print("the loss of each rank is below 0.1:", [loss < 0.1 for loss in losses])
    one, other = trainers.weight.call().get().values()
    print("both ranks have the same weights:", torch.equal(one, other))

# prints:
#   the loss of each rank is below 0.1: [True, True]
#   both ranks have the same weights: True
