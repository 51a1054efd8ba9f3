"""Simulate the time and memory of a training step of a GPT on 1,000 devices, on a laptop.

Each block is sharded over the eight devices of a host (tensor parallel), and the batch over 125
hosts (data parallel). The program is the same as on real processes; only the mesh is simulated.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from mesh_tensor import CostModel, Simulator, trace, vary

HOSTS, GPUS = 125, 8
WIDTH, HEADS, LAYERS, CONTEXT, WORDS, SIZE = 4096, 32, 32, 2048, 50_304, 4


class Attention(nn.Module):
    """The attention heads of one device."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, 3 * WIDTH // GPUS, bias=False)
        self.out = nn.Linear(WIDTH // GPUS, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inner(vary(x, "gpu")).view(SIZE, CONTEXT, 3, HEADS // GPUS, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(seen.transpose(1, 2).flatten(2)).reduce("gpu", grad="same")


class MLP(nn.Module):
    """The hidden units of one device."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, 4 * WIDTH // GPUS, bias=False)
        self.out = nn.Linear(4 * WIDTH // GPUS, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.gelu(self.inner(vary(x, "gpu")))
        return self.out(hidden).reduce("gpu", grad="same")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.attention, self.mlp = Attention(), MLP()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(CONTEXT, device=x.device)
        return self.head(self.norm(self.blocks(self.word(x) + self.place(places))))


def train_on(inputs: Tensor, targets: Tensor) -> None:
    scores = model(inputs)
    functional.cross_entropy(scores.flatten(0, 1), targets.flatten()).backward()
    for parameter in model.parameters():
        parameter.grad.reduce_("dp", "avg")
    optimizer.step()
    optimizer.zero_grad()


simulator = Simulator({"dp": HOSTS, "gpu": GPUS}, CostModel.h100(), per_host=GPUS)
with simulator.activate(), torch.device("cuda"):
    model = GPT().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    inputs = torch.randint(WORDS, (SIZE, CONTEXT))
    train_on(inputs, inputs)
    with simulator.step() as eager:
        train_on(inputs, inputs)
    replayed = trace(train_on)
    replayed(inputs, inputs)
    with simulator.step() as step:
        replayed(inputs, inputs)

(use,) = step.report.of("cuda")
print(eager.report)
print(f"a step takes {step.report.total_s:.2f} s, replayed from a trace")
print(f"{SIZE * CONTEXT * HOSTS / step.report.total_s:,.0f} words a second")
print(f"{use.communication_s / step.report.total_s:.0%} of it is communication")
print(f"{use.peak_bytes / 1e9:.1f} GB of memory are needed on each device")
assert step.report.fits

# prints:
#   ... on 1000 processes, of which ... in the program
#   cuda             0-999 ...
#   ...reduce(avg)  tensor_simulate.py:...
#   a step takes ... s, replayed from a trace
#   ... words a second
#   ...% of it is communication
#   ... GB of memory are needed on each device
