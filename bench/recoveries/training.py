"""The training that all systems run: the small GPT of the examples with DDP."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

# The scripts run where neither Mesh nor the repository is installed.
sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))

from kills import RANKS, Journal
from small_gpt import CONTEXT, GPT, loss_of, tokens

BATCH_PER_RANK = 8


class GPTTraining:
    """The training of one rank.

    Args:
        folder: The folder of the journals.
        seed: The seed of the kills.
    """

    def __init__(self, folder: str, seed: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.folder, self.seed = folder, seed
        self.model = GPT()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)

    def join(self) -> None:
        """Wrap the model for the current process group."""
        self.rank = distributed.get_rank()
        self.journal = Journal(self.folder, self.rank, self.seed)
        self.wrapped = nn.parallel.DistributedDataParallel(self.model)
        # DDP divides the gradients into other groups after the first backward pass.
        self.loss(0).backward()

    def loss(self, step: int) -> torch.Tensor:
        """Return the loss for the samples of this rank."""
        draw = torch.Generator().manual_seed(step * RANKS + self.rank)
        starts = torch.randint(len(tokens) - CONTEXT, (BATCH_PER_RANK,), generator=draw)
        rows = torch.stack([tokens[start : start + CONTEXT + 1] for start in starts.tolist()])
        return loss_of(self.wrapped(rows[:, :-1]), rows[:, 1:])

    def train_step(self, step: int) -> float:
        """Train one step, or end by a planned kill."""
        self.journal.begin(step)
        self.optimizer.zero_grad()
        loss = self.loss(step)
        loss.backward()
        self.optimizer.step()
        self.journal.end(step)
        return loss.item()

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state of the model and of the optimizer."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
