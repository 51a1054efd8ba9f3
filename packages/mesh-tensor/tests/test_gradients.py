"""Gradients that are computed one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import mesh_tensor as mt

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_tensor import DeviceMesh


def _chain(weights: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    for weight in weights:
        x = torch.tanh(x @ weight)
    return x.square().sum()


def _shared(weights: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    first, second, _ = weights
    hidden = torch.relu(x @ first)
    left, right = (hidden @ second).chunk(2, dim=1)
    return (left * right).sum() + (hidden @ first).exp().mean()


def _weights() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [(torch.randn(4, 4) / 2).requires_grad_() for _ in range(3)]


@pytest.mark.parametrize("program", [_chain, _shared])
def test_gradients_equal_those_of_autograd(
    program: Callable[[list[torch.Tensor], torch.Tensor], torch.Tensor],
) -> None:
    weights, x = _weights(), torch.randn(2, 4)
    loss = program(weights, x)
    expected = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
    for order in ([0, 1, 2], [2, 1, 0], [1, 1, 0, 2]):
        made = list(mt.grad_generator(loss, [weights[at] for at in order]))
        for at, gradient in zip(order, made, strict=True):
            wanted = expected[at]
            assert (gradient is None) == (wanted is None)
            if gradient is not None and wanted is not None:
                torch.testing.assert_close(gradient, wanted)
    assert all(weight.grad is None for weight in weights)


def test_gradients_of_modules_and_intermediate_results() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 3))
    image = torch.randn(2, 1, 6, 6, requires_grad=True)
    hidden = model[0](image)
    result = model[1:](hidden)
    weight = torch.randn_like(result)
    tensors = [*model.parameters(), hidden, image]
    expected = torch.autograd.grad([result], tensors, [weight], retain_graph=True)
    made = list(mt.grad_generator([result], tensors, [weight]))
    for gradient, wanted in zip(made, expected, strict=True):
        torch.testing.assert_close(gradient, wanted)


def test_only_the_needed_part_of_the_backward_pass_runs() -> None:
    calls: list[str] = []

    class Traced(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, name: str) -> torch.Tensor:
            ctx.name = name
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            calls.append(ctx.name)
            return gradient, None

    weights = _weights()
    hidden: torch.Tensor = torch.randn(2, 4)
    for at, weight in enumerate(weights):
        hidden = Traced.apply(hidden @ weight, f"layer {at}")  # type: ignore[no-untyped-call]
    gradients = mt.grad_generator(hidden.sum(), weights[::-1])
    assert calls == []
    next(gradients)
    assert calls == ["layer 2"]
    next(gradients)
    assert calls == ["layer 2", "layer 1"]
    assert len(list(gradients)) == 1
    assert calls == ["layer 2", "layer 1", "layer 0"]


def test_gradients_of_distributed_tensors(mesh: DeviceMesh) -> None:
    with mt.no_mesh.activate():
        local = _weights()
        expected = torch.autograd.grad(_chain(local, torch.ones(2, 4)), local)
    weights = [mt.put(weight.detach()).requires_grad_() for weight in local]
    loss = _chain(weights, torch.ones(2, 4))
    made = [mt.inspect(one) for one in mt.grad_generator(loss, weights) if one is not None]
    assert len(mesh) == 4
    for gradient, wanted in zip(made, expected, strict=True):
        torch.testing.assert_close(gradient, wanted)


def test_roots_without_a_gradient_are_refused() -> None:
    weights = _weights()
    with pytest.raises(ValueError, match=r"shape \(4, 4\): pass its gradient in grad_roots"):
        mt.grad_generator(weights[0] * 2, weights)
    with pytest.raises(ValueError, match="does not require a gradient"):
        mt.grad_generator(torch.ones(()), weights)
    with pytest.raises(ValueError, match="2 grad_roots for 1 roots"):
        mt.grad_generator(weights[0].sum(), weights, [None, None])
