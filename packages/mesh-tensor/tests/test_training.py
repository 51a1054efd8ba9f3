"""Modules, losses and optimizers of torch give bitwise the same results on a mesh as locally."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import mesh_tensor as mt

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_tensor import DeviceMesh

_MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), (2, 4)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3, padding=1), (2, 2, 8)),
    "conv2d": (lambda: nn.Conv2d(2, 3, 3, stride=2), (2, 2, 8, 8)),
    "transposed convolution": (lambda: nn.ConvTranspose2d(2, 3, 3), (2, 2, 5, 5)),
    "batch norm": (lambda: nn.BatchNorm2d(3), (4, 3, 5, 5)),
    "layer norm": (lambda: nn.LayerNorm(6), (4, 6)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (3, 4, 5)),
    "rms norm": (lambda: nn.RMSNorm(6), (4, 6)),
    "max pool": (lambda: nn.MaxPool2d(2), (2, 3, 8, 8)),
    "average pool": (lambda: nn.AdaptiveAvgPool2d(2), (2, 3, 8, 8)),
    "gelu": (nn.GELU, (4, 6)),
    "softmax": (lambda: nn.Softmax(-1), (4, 6)),
    "dropout": (lambda: nn.Dropout(0.5).eval(), (4, 6)),
    "lstm": (lambda: _First(nn.LSTM(4, 5, batch_first=True)), (2, 3, 4)),
    "gru": (lambda: _First(nn.GRU(4, 5, num_layers=2)), (3, 2, 4)),
    "rnn": (lambda: _First(nn.RNN(4, 5, bidirectional=True)), (3, 2, 4)),
    "attention": (lambda: _Attention(nn.MultiheadAttention(8, 2, batch_first=True)), (2, 5, 8)),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), (2, 5, 8)),
}

_LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mse": lambda one: functional.mse_loss(one, torch.ones_like(one)),
    "l1": lambda one: functional.smooth_l1_loss(one, torch.ones_like(one)),
    "cross entropy": lambda one: functional.cross_entropy(one, torch.tensor([0, 2])),
    "nll": lambda one: functional.nll_loss(one.log_softmax(-1), torch.tensor([0, 2])),
    "binary": lambda one: functional.binary_cross_entropy_with_logits(one, one.sign().relu()),
    "kl": lambda one: functional.kl_div(
        one.log_softmax(-1), one.detach().softmax(-1), reduction="batchmean"
    ),
}

#: Some require arguments; `SparseAdam` requires sparse gradients, and `Muon` matrices.
_OPTIMIZERS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("Adadelta", "Adafactor", "Adagrad", "Adamax", "ASGD", "NAdam")},
    **{name: {} for name in ("RAdam", "RMSprop", "Rprop", "LBFGS")},
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "Adam": {"amsgrad": True},
    "AdamW": {"foreach": True},
}


class _First(nn.Module):
    """Returns the first result of a module with several results."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        first: torch.Tensor = self.inner(given)[0]
        return first


class _Attention(_First):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        first: torch.Tensor = self.inner(given, given, given)[0]
        return first


def placed(mesh: DeviceMesh, module: nn.Module) -> nn.Module:
    """Return a copy of the module with its parameters on a mesh."""
    made: nn.Module = here(lambda: copy.deepcopy(module))
    with mesh.activate(), torch.no_grad():
        for part in made.modules():
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    part._parameters[name] = nn.Parameter(mesh._engine.put(mesh, parameter))
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    part._buffers[name] = mesh._engine.put(mesh, buffer)
    return made


def here(function: Callable[[], Any]) -> Any:
    """Call a function without an active mesh."""
    with mt.no_mesh.activate():
        return function()


def same(there: Any, local: Any) -> None:
    """Compare the values of the last rank."""
    got = mt.inspect(list(there), dp=1, tp=1)
    for one, other in zip(got, local, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=0, atol=0)


@pytest.mark.parametrize("name", _MODULES)
def test_module_forward_and_backward(mesh: DeviceMesh, name: str) -> None:
    make, shape = _MODULES[name]
    torch.manual_seed(1)
    module, value = here(lambda: (make(), torch.randn(shape)))
    copied = placed(mesh, module)
    given = mesh._engine.put(mesh, value).requires_grad_()
    result = copied(given)
    result.square().sum().backward()
    value.requires_grad_()
    expected = here(lambda: module(value))
    here(lambda: expected.square().sum().backward())
    same(
        [result, given.grad, *(one.grad for one in copied.parameters()), *copied.buffers()],
        [expected, value.grad, *(one.grad for one in module.parameters()), *module.buffers()],
    )


def test_embedding(mesh: DeviceMesh) -> None:
    module = here(lambda: nn.Embedding(7, 3, padding_idx=0))
    copied = placed(mesh, module)
    copied(torch.tensor([1, 0, 6, 1])).sum().backward()
    here(lambda: module(torch.tensor([1, 0, 6, 1])).sum().backward())
    same([copied.weight.grad], [module.weight.grad])


@pytest.mark.parametrize("name", _LOSSES)
def test_loss(mesh: DeviceMesh, name: str) -> None:
    value = here(lambda: torch.randn(2, 3))
    given = mesh._engine.put(mesh, value).requires_grad_()
    loss = _LOSSES[name](given)
    loss.backward()
    value.requires_grad_()
    expected = here(lambda: _LOSSES[name](value))
    here(expected.backward)
    same([loss, given.grad], [expected, value.grad])


@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_optimizer(mesh: DeviceMesh, name: str) -> None:
    torch.manual_seed(2)
    module, value = here(lambda: (nn.Linear(4, 3), torch.randn(5, 4)))
    copied, given = placed(mesh, module), mesh._engine.put(mesh, value)

    def train(model: nn.Module, batch: torch.Tensor) -> None:
        optimizer = getattr(torch.optim, name)(model.parameters(), **_OPTIMIZERS[name])

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            found: torch.Tensor = model(batch).square().mean()
            found.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            return found

        for _ in range(3):
            optimizer.step(loss)

    train(copied, given)
    here(lambda: train(module, value))
    same(copied.parameters(), module.parameters())


def test_autocast_checkpoint_and_hooks(mesh: DeviceMesh) -> None:
    module = here(lambda: nn.Linear(4, 3))
    copied = placed(mesh, module)
    value = here(lambda: torch.randn(2, 4))
    given = mesh._engine.put(mesh, value)

    def gradients(model: nn.Module, batch: torch.Tensor) -> list[torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = checkpoint(model, batch, use_reentrant=False)
        result.register_hook(lambda gradient: gradient * 2)
        result.float().sum().backward()
        return [one.grad for one in model.parameters()]

    same(gradients(copied, given), here(lambda: gradients(module, value)))


def test_double_backward(mesh: DeviceMesh) -> None:
    given = torch.full((3,), 2.0, requires_grad=True)
    (first,) = torch.autograd.grad((given**3).sum(), given, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), given)
    assert mt.inspect(second).tolist() == [12.0] * 3


def test_modules_are_cast_copied_and_loaded(mesh: DeviceMesh) -> None:
    module = nn.Linear(2, 2)
    assert module.to(torch.float64).weight.dtype == torch.float64
    other = copy.deepcopy(module)
    with torch.no_grad():
        module.weight.zero_()
    assert not torch.equal(module.weight, other.weight)
    other.load_state_dict(module.state_dict())
    assert torch.equal(module.weight, other.weight)


def test_operations_that_change_a_shape(mesh: DeviceMesh) -> None:
    made = torch.arange(6.0).reshape(2, 3)
    row = made[0]
    made.t_().add_(1)
    assert made.shape == (3, 2)
    made.unsqueeze_(0).squeeze_().transpose_(0, 1).mul_(2)
    assert mt.inspect(row).tolist() == [2, 4, 6]
    made.data = torch.ones(2)
    made.data.add_(1)
    assert mt.inspect(made).tolist() == [2, 2]
    other = torch.zeros(3)
    other.set_(row)
    other.zero_()
    assert mt.inspect(row).tolist() == [0, 0, 0]
    row.resize_(2)
    assert mt.inspect(row + 1).tolist() == [1, 1]


def test_results_that_depend_on_values(mesh: DeviceMesh) -> None:
    made = torch.tensor([1, 0, 2, 2])
    found = [made.nonzero(), made[made > 1], *torch.unique(made, return_counts=True)]
    assert [one.tolist() for one in mt.inspect(found)] == [
        *([[0], [2], [3]], [2, 2], [0, 1, 2], [1, 1, 2])
    ]
    assert torch.equal(made, made.clone())
    assert f"{made.sum():03d}" == "005"
    with pytest.raises(mt.RanksDisagree, match="shape"):
        (made * mesh.rank("dp")).nonzero()
    with pytest.raises(mt.RanksDisagree):
        torch.equal(made, made * mesh.rank("dp"))
    with pytest.raises(mt.UnsupportedOp, match="dense"):
        made.to_sparse()
