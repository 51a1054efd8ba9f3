"""A small GPT with training data, used by the examples with tensors.

The training data is documentation that is included with Python, so nothing is downloaded.
"""

from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional

CONTEXT, WIDTH, HEADS, LAYERS = 32, 32, 4, 2

text = "".join(topics[name] for name in sorted(topics))[:200_000]
letters = sorted(set(text))
tokens = torch.tensor([letters.index(one) for one in text])


def batches(count: int, size: int) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of inputs and next-letter targets, each of shape `size` x `CONTEXT`."""
    draw = torch.Generator().manual_seed(0)
    found = []
    for _ in range(count):
        starts = torch.randint(len(tokens) - CONTEXT - 1, (size,), generator=draw)
        rows = torch.stack([tokens[start : start + CONTEXT + 1] for start in starts.tolist()])
        found.append((rows[:, :-1].contiguous(), rows[:, 1:].contiguous()))
    return found


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        count, length, _ = x.shape
        parts = self.inner(x).view(count, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(seen.transpose(1, 2).reshape(count, length, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.attention = Attention()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letter = nn.Embedding(len(letters), WIDTH)
        self.place = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(letters))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.letter(x) + self.place)))


def loss_of(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy over all letters."""
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def trained_alone(steps: int, size: int) -> list[float]:
    """Return the losses of training in this process alone: the reference for the examples."""
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for inputs, targets in batches(steps, size):
        loss = loss_of(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
