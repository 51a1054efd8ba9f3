"""The kinds of compiled ops, and the functions that compile a step for each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mesh_tensor._instructions.compiled_op import CompiledOp
from mesh_tensor._worker.actor_calls import actor_call_step
from mesh_tensor._worker.borrow_exchange import (
    acquire_step,
    cancel_step,
    free_step,
    release_step,
    share_step,
    wait_step,
)
from mesh_tensor._worker.collectives import move_step, reduce_step
from mesh_tensor._worker.remote_functions import adopt_step, function_step, remote_step
from mesh_tensor._worker.replay import replay_step
from mesh_tensor._worker.step_compiler import call_step, operator_of
from mesh_tensor._worker.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_tensor._worker.step_compiler import Step

__all__ = ["KINDS"]


def _op(compiled_op: CompiledOp, world: World) -> Step:
    return call_step(compiled_op, operator_of(compiled_op.name, compiled_op.detail), world)


def _put(compiled_op: CompiledOp, world: World) -> Step:
    """Store a value that the batch carries, or a part of it; its position is the first operand."""
    values = world.values
    # All values arrive on the CPU.
    device: torch.device = compiled_op.kwargs["device"]
    if compiled_op.detail is not None:
        dims, axis, parts = compiled_op.detail
        which = world.peers(compiled_op.ranks, dims).index(world.rank)

        def part_step(code: list[int], at: int) -> int:
            part = world.given[code[at]].chunk(parts, axis)[which]
            part = part.clone(memory_format=torch.contiguous_format)
            values[code[at + 1]] = part.to(device)
            return at + 2

        return part_step

    def step(code: list[int], at: int) -> int:
        values[code[at + 1]] = world.given[code[at]].to(device)
        return at + 2

    return step


def _rank(compiled_op: CompiledOp, world: World) -> Step:
    """Store the coordinate of this process."""
    at_rank = world.peers(compiled_op.ranks, compiled_op.detail).index(world.rank)
    return call_step(compiled_op, lambda: torch.tensor(at_rank), world)


def _groups(compiled_op: CompiledOp, world: World) -> Step:
    """Create a group for later functions, at a point that is in the same order in all processes."""
    world.group(world.peers(compiled_op.ranks, compiled_op.detail))
    return lambda _, at: at


KINDS: dict[str, Callable[[CompiledOp, World], Step]] = {
    "op": _op,
    "put": _put,
    "rank": _rank,
    "reduce": reduce_step,
    "move": move_step,
    "function": function_step,
    "remote": remote_step,
    "adopt": adopt_step,
    "actor_call": actor_call_step,
    # The ops of a trace are of these kinds, too.
    "replay": lambda compiled_op, world: replay_step(compiled_op, world, KINDS),
    "groups": _groups,
    "free": free_step,
    "share": share_step,
    "acquire": acquire_step,
    "release": release_step,
    "wait": wait_step,
    "cancel": cancel_step,
}
