"""Random programs give the same values on each rank of a mesh as a local emulation.

The emulation keeps a local tensor for each rank. Programs create tensors, create views and write to
them, slice the mesh, reduce and move values, and drop tensors; some operations fail on one rank.
"""

from __future__ import annotations

import gc
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_settings import HYPOTHESIS_SETTINGS

import mesh_tensor as mt
from mesh_core import this_host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_SIZES = {"dp": 2, "tp": 2}
_RANKS = 4


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    """Two by two processes."""
    procs = this_host().spawn_procs(_SIZES)
    with procs.activate() as made:
        pass
    yield made
    procs.stop().get()


@dataclass
class Pair:
    """A tensor on the mesh, and its expected value on each rank.

    Attributes:
        there: The tensor on the mesh.
        here: A local tensor by rank, for the ranks of its mesh.
        lost: The program line of a failure on which it depends. Shared by all tensors with the same
            storage.
    """

    there: Any
    here: dict[int, torch.Tensor]
    lost: list[str | None]


class Program:
    """A program that runs on the mesh and in the emulation.

    Args:
        mesh: The mesh.
        draw: Returns a random number below its argument.
    """

    def __init__(self, mesh: Any, draw: Callable[[int], int]) -> None:
        self._mesh = mesh
        self._draw = draw
        self._pairs: list[Pair] = []
        self._make_filled()
        self._make_ranks()

    def step(self, fails: bool) -> None:
        """Execute one random step."""
        steps = self._steps(fails)
        steps[self._draw(len(steps))]()

    def _steps(self, fails: bool) -> list[Callable[[], None]]:
        steps = [
            *(self._combine, self._combine, self._map, self._view, self._view, self._write),
            *(self._write, self._reshape, self._reduce, self._make_filled, self._make_ranks),
            *(self._slice_mesh, self._move, self._drop, self._stack),
        ]
        if fails:
            steps += [self._fail, self._fail]
        return steps

    def check(self) -> None:
        """Compare all tensors on all ranks."""
        for pair in self._pairs:
            if pair.lost[0] is not None:
                with pytest.raises(mt.OpFailed) as caught:
                    mt.inspect(pair.there)
                assert self._line_of(pair) in caught.value.stack
        whole = [one for one in self._pairs if one.lost[0] is None]
        pending = [
            (pair, rank, mt.fetch_shard(pair.there, self._place(pair, rank)))
            for pair in whole
            for rank in pair.here
        ]
        for pair, rank, value in pending:
            got, want = value.get(), pair.here[rank]
            assert got.dtype == want.dtype
            assert pair.there.shape == want.shape == got.shape
            assert pair.there.stride() == want.stride()
            assert torch.equal(got, want), (rank, got, want)

    def _line_of(self, pair: Pair) -> str:
        """Return a text in the program line that the error of a lost tensor must name."""
        return str(pair.lost[0])

    def _place(self, pair: Pair, rank: int) -> dict[str, int]:
        region = pair.there.mesh._region
        index = region.index_of(rank)
        return dict(zip(region.labels, region.coordinates(index), strict=True))

    def _any(self) -> Pair:
        return self._pairs[self._draw(len(self._pairs))]

    def _like(self, pair: Pair) -> Pair:
        """Return a random tensor on the same mesh whose values can be written to this one."""
        fits = [
            one
            for one in self._pairs
            if one.there.mesh is pair.there.mesh and _fits(one.there.shape, pair.there.shape)
        ]
        return fits[self._draw(len(fits))]

    def _add(
        self,
        there: Any,
        here: dict[int, torch.Tensor],
        operands: Sequence[Pair] = (),
        is_view: bool = False,
    ) -> None:
        lost = [next((one.lost[0] for one in operands if one.lost[0]), None)]
        self._pairs.append(Pair(there, here, operands[0].lost if is_view else lost))

    def _apply(self, function: Callable[..., Any], *pairs: Pair, is_view: bool = False) -> None:
        there = function(*(one.there for one in pairs))
        here = {rank: function(*(one.here[rank] for one in pairs)) for rank in pairs[0].here}
        self._add(there, here, pairs, is_view)

    def _make_filled(self) -> None:
        shape = ((2, 2), (4,), (2, 3), (1,), ())[self._draw(5)]
        function = (torch.ones, torch.zeros)[self._draw(2)]
        dtype = (torch.float32, torch.int64)[self._draw(2)]
        with self._mesh.activate():
            there = function(shape, dtype=dtype)
        self._add(there, {rank: function(shape, dtype=dtype) for rank in range(_RANKS)})

    def _make_ranks(self) -> None:
        dims = (("dp",), ("tp",), ("dp", "tp"))[self._draw(3)]
        numbers = {("dp",): [0, 0, 1, 1], ("tp",): [0, 1, 0, 1], ("dp", "tp"): [0, 1, 2, 3]}[dims]
        here = {rank: torch.tensor(numbers[rank]) for rank in range(_RANKS)}
        self._add(self._mesh.rank(dims), here)

    def _combine(self) -> None:
        first = self._any()
        function = (operator.add, operator.mul, operator.sub, torch.maximum)[self._draw(4)]
        self._apply(function, first, self._like(first))

    def _map(self) -> None:
        functions: list[Callable[[Any], Any]] = [
            *(torch.neg, torch.sum, torch.clone, torch.abs),
            *(lambda one: one * 2, lambda one: one.float() / 4, lambda one: one.clamp(-8, 8)),
        ]
        self._apply(functions[self._draw(len(functions))], self._any())

    def _view(self) -> None:
        pair = self._any()
        functions: list[Callable[[Any], Any]] = [lambda one: one.detach(), lambda one: one[...]]
        if pair.there.dim():
            functions += [lambda one: one[0], lambda one: one[-1:], lambda one: one.t()]
            functions += [lambda one: one.unsqueeze(0), lambda one: one.transpose(0, -1)]
        if pair.there.dim() > 2:
            functions = functions[:4]
        self._apply(functions[self._draw(len(functions))], pair, is_view=True)

    def _write(self) -> None:
        """Write to a tensor, which other tensors may be views of."""
        pair = self._any()
        choice = self._draw(4)
        if choice == 3:
            source = self._like(pair)
            self._written(pair, lambda one, other: one.copy_(other.clone()), source)
        else:
            functions = (lambda one: one.add_(1), lambda one: one.zero_(), lambda one: one.neg_())
            self._written(pair, functions[choice])

    def _written(self, pair: Pair, function: Callable[..., Any], *others: Pair) -> None:
        everything = (pair, *others)
        function(*(one.there for one in everything))
        for rank in pair.here:
            function(*(one.here[rank] for one in everything))
        if pair.lost[0] is None:
            pair.lost[0] = next((one.lost[0] for one in others if one.lost[0]), None)

    def _reshape(self) -> None:
        """Change the shape of a tensor in place."""
        pair = self._any()
        functions = (lambda one: one.unsqueeze_(0), lambda one: one.squeeze_())
        function = functions[0 if pair.there.dim() < 2 else 1]
        self._written(pair, function)

    def _reduce(self) -> None:
        pair = self._any()
        dims = list(pair.there.mesh.sizes)
        if not dims:
            return
        dim = dims[self._draw(len(dims))]
        name = ("sum", "max", "stack")[self._draw(3)]
        there = pair.there.reduce(dim, reduction=name)
        here = {}
        for rank in pair.here:
            values = torch.stack([pair.here[one] for one in self._peers(pair, rank, dim)])
            # With two values the sum does not depend on the order.
            here[rank] = {
                "sum": lambda of: of.sum(0).to(of.dtype),
                "max": lambda of: of.amax(0),
                "stack": lambda of: of,
            }[name](values).clone(memory_format=torch.contiguous_format)
        self._add(there, here, [pair])

    def _peers(self, pair: Pair, rank: int, dim: str) -> list[int]:
        region = pair.there.mesh._region
        place = self._place(pair, rank)
        return [region.select(**{**place, dim: index}).offset for index in range(region.size(dim))]

    def _slice_mesh(self) -> None:
        """Create a tensor on a slice of the mesh."""
        dim = ("dp", "tp")[self._draw(2)]
        part = self._mesh.slice(**{dim: self._draw(2)})
        with part.activate():
            there = torch.full((2, 2), 3.0)
        self._add(there, {rank: torch.full((2, 2), 3.0) for rank in part._region.ranks()})

    def _move(self) -> None:
        """Move a tensor from one half of the mesh to the other, or to the whole mesh."""
        pair = self._any()
        if pair.there.mesh is self._mesh:
            return
        (dim,) = pair.there.mesh.sizes
        other = next(one for one in _SIZES if one != dim)
        goals = [self._mesh, self._mesh.slice(**{other: 0}), self._mesh.slice(**{other: 1})]
        goal = goals[self._draw(3)]
        there = self._moved(pair.there, goal)
        by_place = {self._place(pair, rank)[dim]: value for rank, value in pair.here.items()}
        here = {}
        for rank in goal._region.ranks():
            at = goal._region.coordinates(goal._region.index_of(rank))
            place = dict(zip(goal._region.labels, at, strict=True))
            here[rank] = by_place[place[dim]].clone(memory_format=torch.contiguous_format)
        self._add(there, here, [pair])

    def _moved(self, tensor: Any, goal: Any) -> Any:
        return mt.to_mesh(tensor, goal)

    def _stack(self) -> None:
        pair = self._any()
        if pair.there.dim() < 3:
            self._apply(lambda one, other: torch.stack([one, other]), pair, pair)

    def _drop(self) -> None:
        if len(self._pairs) > 6:
            self._pairs.pop(self._draw(len(self._pairs)))
            gc.collect(0)

    def _fail(self) -> None:
        """Access an element that does not exist, on one rank only."""
        pair = self._any()
        if pair.there.mesh is not self._mesh or pair.there.dim() != 1:
            return
        bad = self._draw(_RANKS)
        size = pair.there.shape[0]
        index = self._index(pair, bad) * size
        if self._draw(2):
            failed = pair.there[index.view(1)]  # the line that fails
            lost = pair.lost[0] or "the line that fails"
            here = {rank: pair.here[rank][:1].clone() for rank in pair.here}
            self._pairs.append(Pair(failed, here, [lost]))
            return
        pair.there.index_fill_(0, index.view(1), 7)  # the line that writes and fails
        pair.lost[0] = pair.lost[0] or "the line that writes and fails"

    def _index(self, pair: Pair, rank: int) -> Any:
        """Return a tensor that is 1 on one rank and 0 on all others."""
        return self._mesh.rank(("dp", "tp")) == rank


def _fits(shape: Sequence[int], to: Sequence[int]) -> bool:
    """Return whether a tensor of one shape can be broadcast to the other."""
    if len(shape) > len(to):
        return False
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return all(one in (1, other) for one, other in pairs)


def run(mesh: Any, data: st.DataObject, steps: int, fails: bool) -> None:
    """Run a program, and compare the values during the run and at the end."""
    program = Program(mesh, lambda below: data.draw(st.integers(0, below - 1)))
    for count in range(data.draw(st.integers(1, steps))):
        program.step(fails)
        if count % 8 == 7:
            program.check()
    program.check()


@given(st.data())
@settings(HYPOTHESIS_SETTINGS, max_examples=60)
def test_a_program_returns_the_same_on_each_rank_as_locally(mesh: Any, data: st.DataObject) -> None:
    run(mesh, data, 25, fails=False)


@given(st.data())
@settings(HYPOTHESIS_SETTINGS, max_examples=60)
def test_only_dependents_of_a_failure_are_lost_and_name_its_line(
    mesh: Any, data: st.DataObject
) -> None:
    run(mesh, data, 25, fails=True)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@given(st.data(), st.booleans())
@settings(HYPOTHESIS_SETTINGS, max_examples=2000, derandomize=False)
def test_many_long_programs(mesh: Any, data: st.DataObject, fails: bool) -> None:
    run(mesh, data, 80, fails=fails)
