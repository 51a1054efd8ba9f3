"""Collectives as a process does them: torch.distributed moves all the data.

Whoever has no value, as what it depends on has failed, takes part with zeros: the others are not
to wait for ever. The program knows that nothing of the result is good.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from mesh_tensor._worker.failure import FailedValue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_tensor._engine.plan import Plan
    from mesh_tensor._worker.step_compiler import Step
    from mesh_tensor._worker.world import World

__all__ = ["Move", "Reduction", "move_step", "reduce_step"]

OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}


@dataclass(frozen=True)
class Reduction:
    """How values are combined.

    Attributes:
        dims: Along which dimensions of the mesh.
        op: By what; `stack` puts them one behind the other.
        scatter: Whether each process gets a part of the result only.
        in_place: Whether the result goes where the operand was.
        shape: The shape of the operand.
        dtype: Its type.
        device: Where it is.
        out: Whether the second operand gets the result.
    """

    dims: tuple[str, ...]
    op: str
    scatter: bool
    in_place: bool
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    out: bool = False

    def result_shape(self, size: int) -> tuple[int, ...]:
        """Gives the shape of the result, for a group of so many processes."""
        if self.op == "stack":
            return self.shape if self.scatter else (size, *self.shape)
        return self.shape[1:] if self.scatter else self.shape


@dataclass(frozen=True)
class Move:
    """From which process to which ones a value goes, for each part of a mesh.

    Attributes:
        routes: By source, the ranks that it goes to.
        shape: The shape of what goes.
        dtype: Its type.
        device: Where it is, on both sides.
    """

    routes: tuple[tuple[int, tuple[int, ...]], ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def reduce_step(plan: Plan, world: World) -> Step:
    """Combines the values of a group."""
    how: Reduction = plan.detail
    peers = world.peers(plan.ranks, how.dims)
    group = world.group(peers)
    order = _Order.of(peers)
    values = world.values

    def step(w: list[int], at: int) -> int:
        given = values[w[at]]
        is_lost = isinstance(given, FailedValue)
        value = torch.zeros(how.shape, dtype=how.dtype, device=how.device) if is_lost else given
        result = _reduce(value, how, group, order)
        if is_lost:
            raise LostOperand
        if how.out:
            values[w[at + 1]].copy_(result)
            return at + 2
        if how.in_place:
            if result is not given:
                given.copy_(result)
            return at + 1
        values[w[at + 1]] = result
        return at + 2

    return step


class LostOperand(Exception):
    """What was to be combined is not there; those it depends on have said why."""


@dataclass(frozen=True)
class _Order:
    """How the order that the program means differs from that of a group, which goes by rank.

    Attributes:
        there: For each place that the program means, which of the group that is.
        back: For each of the group, at which place the program means it.
    """

    there: list[int]
    back: list[int]

    @classmethod
    def of(cls, peers: Sequence[int]) -> _Order | None:
        """Gives it for the ranks as the program means them; none where there is no difference."""
        by_rank = sorted(peers)
        if by_rank == list(peers):
            return None
        return cls([by_rank.index(one) for one in peers], [peers.index(one) for one in by_rank])


def _reduce(
    value: torch.Tensor, how: Reduction, group: dist.ProcessGroup, order: _Order | None
) -> torch.Tensor:
    size = group.size()
    if order is not None and how.scatter:
        value = value[order.back]
    if how.op == "stack":
        value = value.contiguous()
        if how.scatter:
            out = torch.empty_like(value)
            dist.all_to_all_single(out, value, group=group)
            return out if order is None else out[order.there]
        out = value.new_empty((size, *value.shape))
        # One behind the other, whatever their shape is.
        dist.all_gather_into_tensor(out.view(-1), value.view(-1), group=group)
        return out if order is None else out[order.there]
    if how.scatter:
        out = value.new_empty(value.shape[1:])
        dist.reduce_scatter_tensor(
            out.view(-1), value.contiguous().view(-1), op=OPS[how.op], group=group
        )
        return out
    if not (how.in_place and value.is_contiguous()):
        value = value.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(value, op=OPS[how.op], group=group)
    return value


def move_step(plan: Plan, world: World) -> Step:
    """Sends a value, or receives one, or both."""
    how: Move = plan.detail
    values = world.values
    targets = next((to for source, to in how.routes if source == world.rank), ())
    source = next((one for one, to in how.routes if world.rank in to), None)
    # That of all is there already; another stream has one of its own.
    group = world.group(world.region(plan.ranks).ranks()) if plan.lane else None

    def step(w: list[int], at: int) -> int:
        given: Any = values[w[at]] if targets else None
        is_lost = isinstance(given, FailedValue)
        if is_lost:
            given = torch.zeros(how.shape, dtype=how.dtype, device=how.device)
        wire: Any = given.contiguous() if targets else None
        sends = [dist.isend(wire, one, group=group) for one in targets if one != world.rank]
        result = None
        if source == world.rank:
            result = wire.clone()
        elif source is not None:
            result = torch.empty(how.shape, dtype=how.dtype, device=how.device)
            dist.recv(result, source, group=group)
        for one in sends:
            if one is not None:
                one.wait()
        if is_lost:
            raise LostOperand
        values[w[at + 1]] = result
        return at + 2

    return step
