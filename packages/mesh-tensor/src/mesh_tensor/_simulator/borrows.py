"""Borrows between streams of simulated processes: memory that is kept, and time spent waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mesh_tensor._simulator.rank_groups import HOST

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_tensor._instructions.compiled_op import CompiledOp
    from mesh_tensor._simulator.world import SimulatedWorld
    from mesh_tensor._tensor.meta import Kind

    Step = Callable[[list[int], int], int]

__all__ = ["BORROWING"]


def _give(compiled_op: CompiledOp, world: SimulatedWorld) -> Step:
    """Give a value to another stream; its memory is kept until it is returned."""

    def step(code: list[int], at: int) -> int:
        token, held = code[at + 1], world.values[code[at]]
        assert held is not None
        held.storage.users += 1
        world.loans[token] = held.kind, held.storage, bool(compiled_op.detail)
        world.lend(compiled_op, token, _device(held.kind))
        return at + 3

    return step


def _take(compiled_op: CompiledOp, world: SimulatedWorld) -> Step:
    """Take a value that another stream gives."""

    def step(code: list[int], at: int) -> int:
        token = code[at + 1]
        kind, storage, _ = world.loans[token]
        world.hold(code[at + 2], kind, storage, 0, compiled_op.ranks)
        world.borrow(compiled_op, token, _device(kind), is_last=False)
        return at + 3

    return step


def _return(compiled_op: CompiledOp, world: SimulatedWorld) -> Step:
    """Return a value that was taken."""

    def step(code: list[int], at: int) -> int:
        kind, storage, is_mutable = world.loans[code[at]]
        device = _device(kind)
        world.lend(compiled_op, code[at], device)
        if not is_mutable and device == HOST:
            # No stream will wait for it.
            del world.loans[code[at]]
            world.leave(storage)
        return at + 1

    return step


def _wait(compiled_op: CompiledOp, world: SimulatedWorld) -> Step:
    """Wait until a value that was given is returned."""

    def step(code: list[int], at: int) -> int:
        found = world.loans.pop(code[at], None)
        if found is not None:
            kind, storage, _ = found
            world.borrow(compiled_op, code[at], _device(kind), is_last=True)
            world.leave(storage)
        return at + 1

    return step


def _give_up(compiled_op: CompiledOp, world: SimulatedWorld) -> Step:
    """End a loan that was never taken."""

    def step(code: list[int], at: int) -> int:
        _, storage, _ = world.loans.pop(code[at])
        world.leave(storage)
        return at + 1

    return step


def _free(compiled_op: CompiledOp, world: SimulatedWorld) -> Step:
    """Free a value of a stream."""

    def step(code: list[int], at: int) -> int:
        world.free(code[at])
        return at + 1

    return step


def _device(kind: Kind | None) -> str:
    return HOST if kind is None else kind.device.type


BORROWING: dict[str, Callable[[CompiledOp, SimulatedWorld], Step]] = {
    "free": _free,
    "give": _give,
    "take": _take,
    "return": _return,
    "wait": _wait,
    "give_up": _give_up,
}
