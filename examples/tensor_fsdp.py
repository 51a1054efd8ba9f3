"""Trains a small GPT that is cut over two processes by FSDP2, inside of a remote module.

Each process keeps half of every parameter and of its optimizer state. The program sees a module: it
calls it with a batch of which each process takes its part, and has backward run.
"""

import torch
from small_gpt import GPT, batches, loss_of, trained_alone
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from mesh_core import this_host
from mesh_tensor import RemoteModule, inspect, shard

STEPS, SIZE = 20, 16


class Trained(nn.Module):
    """The model with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.model = GPT()

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return loss_of(self.model(inputs), targets)


def build(mesh: DeviceMesh) -> nn.Module:
    """Runs in each process, with the mesh of all of them."""
    torch.manual_seed(0)
    whole = Trained()
    for block in whole.model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(whole, mesh=mesh)


data = batches(STEPS, SIZE)
with this_host().spawn_procs({"dp": 2}).activate() as mesh:
    # The number of letters may be odd: the parts of processes then differ, so they stay there.
    model = RemoteModule(build, mesh, keep_parameters=True)
    optimizer = model.optimizer(torch.optim.AdamW, lr=1e-2)
    losses = []
    for inputs, targets in data:
        loss = model(shard(inputs), shard(targets))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().reduce("dp", "avg"))
    found = [loss.item() for loss in inspect(losses)]

alone = trained_alone(STEPS, SIZE)
worst = max(abs(one - other) for one, other in zip(found, alone, strict=True))
print(f"loss {found[0]:.3f} -> {found[-1]:.3f}")
print(f"at most {worst:.1e} from that of one process")
assert worst < 1e-5

# prints:
#   loss ... -> ...
#   at most ... from that of one process
