"""Compute with tensors on a mesh: collectives, failures, pipelines, streams and a simulated mesh.

Inside `with mesh.activate():`, every operation runs on all processes of the mesh. The same training
step runs on real processes and in a simulation, with the gradients reduced on a separate stream.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from mesh_core import this_host
from mesh_tensor import (
    OpFailed,
    Simulator,
    Stream,
    fetch_shard,
    grad_generator,
    put,
    random,
    show,
    to_mesh,
)

procs = this_host().spawn_procs({"host": 2, "gpu": 2})
print(procs.extent, procs.rename(host="dp", gpu="tp").extent)
print(procs.split(host=("dp", "pp"), pp=2).extent)

with procs.activate() as mesh:
    rank = mesh.rank("host") * 2 + mesh.rank("gpu")
    x = torch.ones(3) * rank  # a different one on each process
    show(x, host=1, gpu=1)
    show((x + 1) @ (x + 1), host=0, gpu=1)
    show(x.reduce("gpu", "sum"), host=1, gpu=0)
    show(x.reduce(("host", "gpu"), "sum"), host=0, gpu=0)

# A failed operation affects only the tensors that depend on it.
with procs.activate():
    too_large = torch.ones(1 << 60)
    try:
        show(too_large + 1)
    except OpFailed as error:
        print("failed:", error.op)
    show(x, host=0, gpu=0)

# A pipeline: each stage is on a slice of the mesh, and its input is moved there.
stages = []
for host in range(2):
    with procs.slice(host=host).activate() as here:
        random.manual_seed(host, per_rank=False)
        stages.append((here, nn.Sequential(nn.Linear(4, 4), nn.ReLU())))
with torch.no_grad():
    activation = put(torch.ones(2, 4), stages[0][0])
    for here, stage in stages:
        activation = stage(to_mesh(activation, here))
print(tuple(activation.shape), "on", activation.mesh.sizes)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self.layers(inputs), targets)


def train(model: Net, inputs: Tensor, targets: Tensor, dim: str) -> Tensor:
    """Update the weights of some layers while the gradients of others are still being reduced."""
    loss = model(inputs, targets)
    parameters = list(model.parameters())[::-1]
    reduced = []
    for gradient in grad_generator(loss, parameters):
        assert gradient is not None
        lent, borrow = comms.borrow(gradient, mutable=True)
        lent.reduce_(dim, "avg")  # on the stream `comms`, during the backward pass
        reduced.append((gradient, borrow))
    with torch.no_grad():
        for parameter, (gradient, borrow) in zip(parameters, reduced, strict=True):
            borrow.drop()  # later operations wait for the reduction of this gradient
            parameter -= 0.5 * gradient
    return loss.detach()


def step(dim: str) -> Tensor:
    return train(model, torch.ones(3, 4), torch.ones(3, dtype=torch.int64), dim)


comms = Stream("comms")
with procs.rename(host="dp", gpu="tp").activate():
    random.manual_seed(0, per_rank=False)
    model = Net()
    losses = [fetch_shard(step("dp")) for _ in range(20)]
    first, last = losses[0].get().item(), losses[-1].get().item()
    print(f"the loss falls from {first:.2f} to {last:.2f}")
    assert last < first

# The same step on simulated devices: the report shows both streams.
simulator = Simulator({"dp": 512})
with simulator.activate(), torch.device("cuda"):
    model = Net()
    step("dp")
    with simulator.step() as part:
        step("dp")
print(part.report)
assert part.report.fits

# prints:
#   {host: 2, gpu: 2} {dp: 2, tp: 2}
#   {dp: 1, pp: 2, gpu: 2}
#   tensor([3., 3., 3.])
#   tensor(12.)
#   tensor([5., 5., 5.])
#   tensor([6., 6., 6.])
#   failed: aten.ones.default
#   tensor([0., 0., 0.])
#   (2, 4) on {'gpu': 2}
#   the loss falls from ... to ...
#   ... on 512 processes, of which ... in the program
#   cuda             0-511 ...
#   cuda 1           0-511 ...
