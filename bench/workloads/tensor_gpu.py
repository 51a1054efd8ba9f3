"""A training step of a transformer on one GPU: in this process, and from it in another process.

All variants train the same model on the same batch on the same device, in turn. They must reach the
same loss. The floor is plain PyTorch, which computes in the process of the program.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bench.drivers.tensor_program import TensorDriver
from bench.record import Recorder
from bench.scale import Scale

_WIDTH, _HEADS, _LAYERS, _BATCH, _LENGTH = 1024, 16, 8, 8, 512
_STEPS, _ROUNDS = 10, 5
#: Relative difference of the losses; the variants use the same kernels in bfloat16.
_TOLERANCE = 1e-2

Step = Callable[[], torch.Tensor]


def train(driver: TensorDriver, scale: Scale, record: Recorder) -> None:
    """Train in turn in this process, and eagerly and by replay in another one."""
    torch.manual_seed(0)
    models = [_model() for _ in range(3)]
    for other in models[1:]:
        other.load_state_dict(models[0].state_dict())
    draw = torch.Generator().manual_seed(0)
    batch = [torch.randn(_BATCH, _LENGTH, _WIDTH, generator=draw).bfloat16() for _ in range(2)]
    plain, eager, replayed = models
    plain_step = _stepper(plain.cuda(), *(one.cuda() for one in batch))

    driver.start(1)
    assert driver.api.trace is not None
    with driver.activate():
        inputs, goals = (driver.place(one).cuda() for one in batch)
        eager_step = _stepper(_placed(driver, eager), inputs, goals)
        replayed_step = driver.api.trace(_stepper(_placed(driver, replayed), inputs, goals))
    ways = {
        "plain": lambda: _train_here(plain_step),
        "eager": lambda: _train_there(driver, eager_step),
        "replayed": lambda: _train_there(driver, replayed_step),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(1 + _ROUNDS):
        losses = {}
        for name, way in ways.items():
            seconds, losses[name] = way()
            times[name].append(seconds)
        for loss in losses.values():
            assert abs(loss - losses["plain"]) <= _TOLERANCE * losses["plain"], losses
    for name, taken in times.items():
        # The first round allocates memory and compiles.
        record.value(f"{name}_best", min(taken[1:]) * 1e3, "ms", n=len(taken) - 1)
        record.times(f"{name}_", taken[1:], "ms")
    driver.stop()


def _model() -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        _WIDTH, _HEADS, 4 * _WIDTH, dropout=0.0, batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, _LAYERS, enable_nested_tensor=False).bfloat16()


def _placed(driver: TensorDriver, model: nn.Module) -> nn.Module:
    for part in model.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            part._parameters[name] = nn.Parameter(driver.place(parameter.detach()).cuda())
    return model


def _stepper(model: nn.Module, inputs: torch.Tensor, goals: torch.Tensor) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step() -> torch.Tensor:
        loss: torch.Tensor = (model(inputs) - goals).float().square().mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step


def _train_here(step: Step) -> tuple[float, float]:
    return _train(step, lambda loss: float(loss))


def _train_there(driver: TensorDriver, step: Step) -> tuple[float, float]:
    with driver.activate():
        return _train(step, lambda loss: float(driver.api.fetch(loss)))


def _train(step: Step, value_of: Callable[[Any], float]) -> tuple[float, float]:
    """Return the seconds of a step, and the last loss."""
    started = time.perf_counter()
    for _ in range(_STEPS):
        loss = step()
    found = value_of(loss)
    return (time.perf_counter() - started) / _STEPS, found
