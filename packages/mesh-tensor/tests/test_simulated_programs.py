"""Simulated and real programs create tensors of the same kinds and use exactly the same memory."""

from __future__ import annotations

import gc
import operator
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_settings import HYPOTHESIS_SETTINGS
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import mesh_tensor as mt
from mesh_tensor._worker.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mesh_core import ProcMesh

SIZES = {"dp": 2}


#: The world of this process, after the first lookup.
worlds: list[World] = []


@mt.remote(propagate="inspect")
def live_bytes() -> int:
    """Return the memory of all slots of this process; shared memory counts once."""
    if not worlds:
        worlds.extend(one for one in gc.get_objects() if type(one) is World)
    tensors = [one for world in worlds for one in world.values if isinstance(one, torch.Tensor)]
    storages = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in tensors}
    return sum(storages.values())


class Watch(TorchDispatchMode):
    """Measures the memory of all tensors that operations return while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in pytree.tree_leaves(result):
            if isinstance(one, torch.Tensor):
                self._note(one.untyped_storage())
        self.peak = max(self.peak, self.live)
        return result

    def _note(self, storage: Any) -> None:
        key, nbytes = storage._cdata, storage.nbytes()
        if key in self._known:
            return

        def gone(_: Any) -> None:
            del self._known[key]
            self.live -= nbytes

        self._known[key] = weakref.ref(storage, gone)
        self.live += nbytes


watches: list[Watch] = []


@mt.remote(propagate="inspect")
def begin_watch() -> None:
    """Start to measure the memory of the process."""
    watches.append(Watch())
    watches[-1].__enter__()


@mt.remote(propagate="inspect")
def end_watch() -> int:
    """Stop the measurement and return the peak."""
    watch = watches.pop()
    watch.__exit__(None, None, None)
    return watch.peak


def train(model: Callable[[], nn.Module], x: Callable[[], torch.Tensor]) -> None:
    """Train for two steps, data parallel."""
    made = model()
    optimizer = torch.optim.AdamW(made.parameters(), foreach=False)
    for _ in range(2):
        loss = made(x()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in made.parameters():
            # Gloo would receive a copy of a tensor that is not contiguous, and its threads release
            # it late.
            gradient: Any = parameter.grad.contiguous()  # type: ignore[union-attr]
            parameter.grad = gradient
            gradient.reduce_("dp", "avg")
        optimizer.step()
        del loss


class Block(nn.Module):
    """A transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.inner(self.norm(x)).view(4, 16, 3, 4, 8).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        return x + self.out(seen.transpose(1, 2).reshape(4, 16, 32))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "wide": lambda: nn.Sequential(nn.Linear(32, 512), nn.GELU(), nn.Linear(512, 32)),
    "deep": lambda: nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(6))),
    "attention": lambda: nn.Sequential(Block(), Block()),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_peak_memory_of_training_equals_that_of_real_processes(
    procs: ProcMesh, name: str
) -> None:
    # Threads of gloo hold their tensors for a moment longer than necessary, which sometimes
    # increases the peak: the minimum of several runs is the memory that the program itself needs.
    runs = []
    with procs.activate():
        for _ in range(5):
            begin_watch.call().get()
            train(MODELS[name], lambda: torch.ones(4, 16, 32))
            runs.append(end_watch.call().get().values())
    real = [min(peaks) for peaks in zip(*runs, strict=True)]
    simulator = mt.Simulator(SIZES, mt.CostModel.h100())
    with simulator.activate():
        train(MODELS[name], lambda: torch.ones(4, 16, 32))
    assert real == [simulator.report().peak_bytes("cpu")] * 2


class Both:
    """A program on real and on simulated processes at once.

    Args:
        real: The real processes.
        simulator: The simulated processes.
        draw: Returns a random number below its argument.
    """

    def __init__(self, real: Any, simulator: mt.Simulator, draw: Callable[[int], int]) -> None:
        self._real, self._simulator, self._draw = real, simulator, draw
        self.pairs: list[tuple[Any, Any]] = []
        self._make()

    def step(self) -> None:
        """Execute one random step."""
        steps = [self._make, self._combine, self._view, self._write, self._reduce, self._drop]
        steps += [self._gradient, self._split, self._set]
        steps[self._draw(len(steps))]()

    def check(self) -> None:
        """Compare the memory and the metadata of all tensors."""
        for real, simulated in self.pairs:
            assert real.shape == simulated.shape
            assert real.stride() == simulated.stride()
            assert real.dtype == simulated.dtype
            assert real.device == simulated.device
        simulated = sum(one.live_bytes for one in self._simulator.report().of("cpu"))
        with self._real.activate():
            found = set(live_bytes.call().get().values())
        assert found == {simulated}, (found, simulated)

    def _each(self, function: Callable[..., Any], *operands: tuple[Any, Any]) -> None:
        real, simulated = (function(*(pair[at] for pair in operands)) for at in (0, 1))
        if isinstance(real, (tuple, list)):
            self.pairs += zip(real, simulated, strict=True)
        else:
            self.pairs.append((real, simulated))

    def _any(self) -> tuple[Any, Any]:
        return self.pairs[self._draw(len(self.pairs))]

    @contextmanager
    def _on(self, mesh: Any) -> Iterator[None]:
        with mesh.activate():
            yield

    def _make(self) -> None:
        shape = ((2, 3), (4,), (6, 4), ())[self._draw(4)]
        dtype = (torch.float32, torch.int64, torch.bfloat16)[self._draw(3)]
        with self._real.activate():
            real = torch.ones(shape, dtype=dtype)
        with self._simulator.activate():
            self.pairs.append((real, torch.ones(shape, dtype=dtype)))

    def _combine(self) -> None:
        functions: list[Callable[[Any], Any]] = [
            *(lambda one: one + one, lambda one: one.float().sum(), torch.abs),
            *(lambda one: torch.stack([one, one]), lambda one: one.double()),
            *(lambda one: one.reshape(-1), lambda one: one.contiguous(), lambda one: one > 0),
        ]
        self._each(functions[self._draw(len(functions))], self._any())

    def _view(self) -> None:
        functions: list[Callable[[Any], Any]] = [
            *(lambda one: one.detach(), lambda one: one.t() if one.dim() < 3 else one[0]),
            *(lambda one: one.unsqueeze(0), lambda one: one[-1:] if one.dim() else one[None]),
            lambda one: one.expand(2, *one.shape),
        ]
        self._each(functions[self._draw(len(functions))], self._any())

    def _split(self) -> None:
        pair = self._any()
        if pair[0].dim() and pair[0].shape[0] > 1:
            self._each(lambda one: one.unbind(0), pair)

    def _write(self) -> None:
        pair = self._any()
        if 0 in pair[0].stride():
            return
        functions: list[Callable[[Any], Any]] = [
            *(operator.methodcaller("zero_"), operator.methodcaller("add_", 1)),
            operator.methodcaller("unsqueeze_", 0),
        ]
        function = functions[self._draw(2 if pair[0].dim() > 2 else 3)]
        for one in pair:
            function(one)

    def _set(self) -> None:
        """Make a tensor use the memory of another one, or extend its own."""
        pair, other = self._any(), self._any()
        if self._draw(2):
            for one in pair:
                if one.is_contiguous() and not one.storage_offset():
                    one.resize_(one.numel() + 5)
        elif pair[0].dtype == other[0].dtype:
            for one, source in zip(pair, other, strict=True):
                one.set_(source)

    def _reduce(self) -> None:
        pair = self._any()
        if pair[0].dtype is torch.bool:
            return
        if self._draw(2):
            self._each(lambda one: one.reduce("dp", "sum"), pair)
        elif pair[0].dim() < 3:
            self._each(lambda one: one.reduce("dp", "stack"), pair)

    def _gradient(self) -> None:
        pair = self._any()
        if pair[0].dtype is not torch.float32:
            return

        def gradient(one: Any) -> Any:
            leaf = one.detach().clone().requires_grad_()
            (leaf * leaf.exp()).sum().backward()
            return leaf.grad

        self._each(gradient, pair)

    def _drop(self) -> None:
        if len(self.pairs) > 4:
            self.pairs.pop(self._draw(len(self.pairs)))


def run(procs: ProcMesh, data: st.DataObject, steps: int) -> None:
    """Run a program on both, and compare during the run and at the end."""
    with procs.activate() as real:
        pass
    both = Both(real, mt.Simulator(SIZES), lambda below: data.draw(st.integers(0, below - 1)))
    for count in range(data.draw(st.integers(1, steps))):
        both.step()
        if count % 8 == 7:
            both.check()
    both.check()
    both.pairs.clear()
    # Autograd graphs contain reference cycles.
    gc.collect()
    both.check()


@given(st.data())
@settings(HYPOTHESIS_SETTINGS, max_examples=10)
def test_random_programs_have_the_same_tensors_and_the_same_memory(
    procs: ProcMesh, data: st.DataObject
) -> None:
    run(procs, data, 30)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@given(st.data())
@settings(HYPOTHESIS_SETTINGS, max_examples=500, derandomize=False)
def test_many_long_programs(procs: ProcMesh, data: st.DataObject) -> None:
    run(procs, data, 80)


def test_set_releases_the_previous_memory_of_a_tensor() -> None:
    simulator = mt.Simulator(SIZES)
    with simulator.activate():
        x, y = torch.ones(2, 3), torch.zeros(2, 3)
        x.set_(y)
        (use,) = simulator.report().of("cpu")
        assert use.live_bytes == y.nbytes
        x.set_(x[:1])
        del x, y
    assert simulator.report().of("cpu")[0].live_bytes == 0
