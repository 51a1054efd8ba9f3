"""Train a small GPT in two stages on two processes (pipeline parallel).

Each stage is created on a slice of the mesh. `to_mesh` moves the output of the first stage to the
second, and its gradient back. The program issues the work of all micro-batches without waiting, so
the first stage processes the next micro-batch while the second processes the previous one.
"""

import torch
from small_gpt import GPT, batches, loss_of, trained_alone
from torch import Tensor, nn

from mesh_core import this_host
from mesh_tensor import inspect, put, to_mesh

STEPS, SIZE, PARTS = 20, 16, 4


class First(nn.Module):
    def __init__(self, whole: GPT) -> None:
        super().__init__()
        self.letter, self.place, self.block = whole.letter, whole.place, whole.blocks[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.letter(x) + self.place)


class Second(nn.Module):
    def __init__(self, whole: GPT) -> None:
        super().__init__()
        self.block, self.norm, self.head = whole.blocks[1], whole.norm, whole.head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.block(x)))


torch.manual_seed(0)
model = GPT()
data = batches(STEPS, SIZE)
procs = this_host().spawn_procs({"stage": 2})
with procs.slice(stage=0).activate() as here:
    first = put(First(model))
with procs.slice(stage=1).activate() as there:
    second = put(Second(model))

optimizers = [torch.optim.AdamW(one.parameters(), lr=1e-2) for one in (first, second)]
losses = []
for inputs, targets in data:
    total = 0
    for x, y in zip(inputs.chunk(PARTS), targets.chunk(PARTS), strict=True):
        scores = second(to_mesh(first(put(x, here)), there))
        loss = loss_of(scores, put(y, there)) / PARTS
        loss.backward()
        total = total + loss.detach()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    losses.append(total)
found = [loss.item() for loss in inspect(losses)]

alone = trained_alone(STEPS, SIZE)
worst = max(abs(one - other) for one, other in zip(found, alone, strict=True))
print(f"loss {found[0]:.3f} -> {found[-1]:.3f}")
print(f"at most {worst:.1e} from that of one process")
assert worst < 1e-5

# prints:
#   loss ... -> ...
#   at most ... from that of one process
