"""The training loop of all variants: a few layers of the same width, and a hand-written SGD.

All variants share this code, so that they issue the same operations; differences are parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_RATE = 0.01

#: The state of a training step: weights, inputs, targets.
State = tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Sizes:
    """The size of a model, and of the batch of one process."""

    layers: int
    width: int
    batch: int


def fresh(sizes: Sizes) -> State:
    """Create weights and a batch, the same in every process."""
    draw = torch.Generator().manual_seed(0)
    scale = (2 / sizes.width) ** 0.5
    weights = [
        torch.randn(sizes.width, sizes.width, generator=draw).mul_(scale)
        for _ in range(sizes.layers)
    ]
    inputs, goals = (torch.randn(sizes.batch, sizes.width, generator=draw) for _ in range(2))
    return [one.requires_grad_() for one in weights], inputs, goals


def forward(weights: list[torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    """Apply the layers."""
    for weight in weights:
        inputs = torch.relu(inputs @ weight)
    return inputs


def step(state: State, combine: Callable[[torch.Tensor], Any] | None = None) -> torch.Tensor:
    """Take one training step; return the loss.

    Args:
        state: The weights, inputs and targets.
        combine: Replaces a gradient by its mean over the processes. Default: each process trains
            separately.
    """
    weights, inputs, goals = state
    loss = (forward(weights, inputs) - goals).square().mean()
    gradients = torch.autograd.grad(loss, weights)
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            if combine is not None:
                combine(gradient)
            weight.sub_(gradient, alpha=_RATE)
    return loss.detach()


class Layers(torch.nn.Module):
    """The same model as a module, for APIs that require one."""

    def __init__(self, weights: list[torch.Tensor]) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(weights)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Apply the layers."""
        return forward(list(self.weights), inputs)


def step_of_module(module: torch.nn.Module, state: State) -> torch.Tensor:
    """Take one training step of a module that averages its gradients itself; return the loss."""
    _, inputs, goals = state
    loss = (module(inputs) - goals).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for weight in module.parameters():
            assert weight.grad is not None
            weight.sub_(weight.grad, alpha=_RATE)
            weight.grad = None
    return loss.detach()


def operations(state: State) -> int:
    """Count the torch operations of a step, below autograd."""
    with _Counter() as counter:
        step(state)
    return counter.count


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))
