"""Collectives in a process: torch.distributed transfers all data.

A process whose operand is lost, because something that it depends on has failed, takes part with
zeros, so that the other processes do not wait forever. The program knows that the result is
invalid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from mesh_tensor._collectives.collective_ops import OPS
from mesh_tensor._worker.failure import FailedValue, LostOperand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_tensor._collectives.collective_ops import Move, Reduction
    from mesh_tensor._instructions.compiled_op import CompiledOp
    from mesh_tensor._worker.step_compiler import Step
    from mesh_tensor._worker.world import World

__all__ = ["move_step", "reduce_step"]


def reduce_step(compiled_op: CompiledOp, world: World) -> Step:
    """Combine the values of a group."""
    how: Reduction = compiled_op.detail
    peers = world.peers(compiled_op.ranks, how.dims)
    group = world.group(peers)
    permutation = _RankPermutation.of(peers)
    values = world.values

    def step(code: list[int], at: int) -> int:
        given = values[code[at]]
        is_lost = isinstance(given, FailedValue)
        value = torch.zeros(how.shape, dtype=how.dtype, device=how.device) if is_lost else given
        result = _reduce(value, how, group, permutation)
        if is_lost:
            raise LostOperand
        if how.out:
            values[code[at + 1]].copy_(result)
            return at + 2
        if how.in_place:
            if result is not given:
                given.copy_(result)
            return at + 1
        values[code[at + 1]] = result
        return at + 2

    return step


@dataclass(frozen=True)
class _RankPermutation:
    """Converts between the order of the program and the order of a group, which is by rank.

    Attributes:
        there: For each position in the program's order, the position in the group.
        back: For each position in the group, the position in the program's order.
    """

    there: list[int]
    back: list[int]

    @classmethod
    def of(cls, peers: Sequence[int]) -> _RankPermutation | None:
        """Return the conversion for ranks in the program's order; None if both orders are equal."""
        by_rank = sorted(peers)
        if by_rank == list(peers):
            return None
        return cls([by_rank.index(one) for one in peers], [peers.index(one) for one in by_rank])


def _reduce(
    value: torch.Tensor,
    how: Reduction,
    group: dist.ProcessGroup,
    permutation: _RankPermutation | None,
) -> torch.Tensor:
    wire_device = _wire_device(group, value.device)
    if wire_device != value.device:
        return _reduce(value.to(wire_device), how, group, permutation).to(value.device)
    size = group.size()
    if permutation is not None and how.scatter:
        value = value[permutation.back]
    if how.op == "stack":
        value = value.contiguous()
        if how.scatter:
            out = torch.empty_like(value)
            dist.all_to_all_single(out, value, group=group)
            return out if permutation is None else out[permutation.there]
        out = value.new_empty((size, *value.shape))
        # Gather flat tensors, because the result is concatenated regardless of their shape.
        dist.all_gather_into_tensor(out.view(-1), value.view(-1), group=group)
        return out if permutation is None else out[permutation.there]
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


def move_step(compiled_op: CompiledOp, world: World) -> Step:
    """Send a value, receive one, or both."""
    how: Move = compiled_op.detail
    values = world.values
    targets = next((to for source, to in how.routes if source == world.rank), ())
    source = next((one for one, to in how.routes if world.rank in to), None)
    # The default stream uses the existing global group; other streams need a separate group.
    group = (
        world.group(world.region(compiled_op.ranks).ranks()) if compiled_op.stream_number else None
    )

    def step(code: list[int], at: int) -> int:
        given: Any = values[code[at]] if targets else None
        is_lost = isinstance(given, FailedValue)
        if is_lost:
            given = torch.zeros(how.shape, dtype=how.dtype, device=how.device)
        wire_device = _wire_device(group or dist.distributed_c10d._get_default_group(), how.device)
        wire: Any = given.contiguous().to(wire_device) if targets else None
        sends = [dist.isend(wire, one, group=group) for one in targets if one != world.rank]
        result = None
        if source == world.rank:
            result = given.clone(memory_format=torch.contiguous_format)
        elif source is not None:
            result = torch.empty(how.shape, dtype=how.dtype, device=wire_device)
            dist.recv(result, source, group=group)
            result = result.to(how.device)
        for one in sends:
            if one is not None:
                one.wait()
        if is_lost:
            raise LostOperand
        values[code[at + 1]] = result
        return at + 2

    return step


def _wire_device(group: dist.ProcessGroup, device: torch.device) -> torch.device:
    """Return the device from which a group sends values of `device`.

    It is the CPU for gloo, because most of its functions abort the process if they are given device
    memory.
    """
    uses_gloo = device.type != "cpu" and group._get_backend(device).name() == "gloo"
    return torch.device("cpu") if uses_gloo else device
