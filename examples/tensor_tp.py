"""Train a small GPT whose wide layers are sharded over two processes (tensor parallel).

Each process has half of the hidden units of every MLP. `vary` marks the point after which the
processes compute different values, and `reduce` combines their results.
"""

import torch
from small_gpt import GPT, batches, loss_of, trained_alone
from torch import Tensor, nn
from torch.nn import functional

from mesh_core import this_host
from mesh_tensor import inspect, put, shard, vary

STEPS, SIZE = 20, 16


class CutMLP(nn.Module):
    """Half of an MLP in each process: the rows of its first layer, the columns of its second."""

    def __init__(self, whole: nn.Sequential) -> None:
        super().__init__()
        first, _, second = whole
        self.rows = nn.Parameter(shard(first.weight, "tp", axis=0))
        self.row_bias = nn.Parameter(shard(first.bias, "tp", axis=0))
        self.columns = nn.Parameter(shard(second.weight, "tp", axis=1))
        self.bias = nn.Parameter(put(second.bias.detach()))

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.gelu(functional.linear(vary(x, "tp"), self.rows, self.row_bias))
        return functional.linear(hidden, self.columns).reduce("tp", grad="same") + self.bias


torch.manual_seed(0)
model = GPT()
data = batches(STEPS, SIZE)
with this_host().spawn_procs({"tp": 2}).activate():
    for block in model.blocks:
        block.mlp = CutMLP(block.mlp)
    put(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for inputs, targets in data:
        loss = loss_of(model(put(inputs)), put(targets))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    found = [loss.item() for loss in inspect(losses)]

alone = trained_alone(STEPS, SIZE)
worst = max(abs(one - other) for one, other in zip(found, alone, strict=True))
print(f"loss {found[0]:.3f} -> {found[-1]:.3f}")
print(f"at most {worst:.1e} from that of one process")
assert worst < 1e-5

# prints:
#   loss ... -> ...
#   at most ... from that of one process
