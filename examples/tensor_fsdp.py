"""Train a small GPT that FSDP2 shards over two processes, inside a remote module.

Each process stores half of every parameter and of its optimizer state. The program calls the remote
module with a batch, of which each process receives its part, and runs backward.
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
    """Build the module in each process, with the device mesh of all processes."""
    torch.manual_seed(0)
    whole = Trained()
    for block in whole.model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(whole, mesh=mesh)


data = batches(STEPS, SIZE)
with this_host().spawn_procs({"dp": 2}).activate() as mesh:
    # The vocabulary size may be odd, so shards may differ in size. The parameters stay on the
    # processes.
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
