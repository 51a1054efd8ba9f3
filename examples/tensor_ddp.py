"""Train a small GPT on two processes, each with half of each batch (data parallel).

The training loop is the same as for a single process, with three additions: the `with` statement,
`shard` for the batch, and a line that averages the gradients over the dimension `dp`.
"""

import time

import torch
from small_gpt import GPT, batches, loss_of, trained_alone

from mesh_core import this_host
from mesh_tensor import inspect, put, shard

STEPS, SIZE = 30, 16

procs = this_host().spawn_procs({"dp": 2})

torch.manual_seed(0)
model = GPT()  # initial weights as in single-process training
data = batches(STEPS, SIZE)
with procs.activate():
    put(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    began = time.perf_counter()
    for inputs, targets in data:
        loss = loss_of(model(shard(inputs, "dp")), shard(targets, "dp"))
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            parameter.grad.reduce_("dp", "avg")
        optimizer.step()
        losses.append(loss.detach().reduce("dp", "avg"))  # without waiting: the loop runs ahead
    found = [loss.item() for loss in inspect(losses)]
    took_ms = (time.perf_counter() - began) / STEPS * 1000

alone = trained_alone(STEPS, SIZE)
worst = max(abs(one - other) for one, other in zip(found, alone, strict=True))
print(f"loss {found[0]:.3f} -> {found[-1]:.3f}, {took_ms:.0f} ms a step")
print(f"at most {worst:.1e} from that of one process")
assert worst < 1e-5

# prints:
#   loss ... -> ..., ... ms a step
#   at most ... from that of one process
