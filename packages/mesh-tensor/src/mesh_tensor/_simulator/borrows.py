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


def _share(compiled_op: CompiledOp, world: SimulatedWorld) -> Step:
    """Share a value with another stream; its memory is kept until it is released."""

    def step(code: list[int], at: int) -> int:
        token, value = code[at + 1], world.values[code[at]]
        assert value is not None
        value.storage.users += 1
        world.borrows[token] = value.kind, value.storage, bool(compiled_op.detail)
        world.record_sync(compiled_op, token, _device(value.kind))
        return at + 3

    return step


def _acquire(compiled_op: CompiledOp, world: SimulatedWorld) -> Step:
    """Acquire a value that another stream shares."""

    def step(code: list[int], at: int) -> int:
        token = code[at + 1]
        kind, storage, _ = world.borrows[token]
        world.store(code[at + 2], kind, storage, 0, compiled_op.ranks)
        world.wait_for_sync(compiled_op, token, _device(kind), is_last=False)
        return at + 3

    return step


def _release(compiled_op: CompiledOp, world: SimulatedWorld) -> Step:
    """Release a value that was acquired."""

    def step(code: list[int], at: int) -> int:
        kind, storage, is_mutable = world.borrows[code[at]]
        device = _device(kind)
        world.record_sync(compiled_op, code[at], device)
        if not is_mutable and device == HOST:
            # No stream will wait for it.
            del world.borrows[code[at]]
            world.release(storage)
        return at + 1

    return step


def _wait(compiled_op: CompiledOp, world: SimulatedWorld) -> Step:
    """Wait until a value that was shared is released."""

    def step(code: list[int], at: int) -> int:
        found = world.borrows.pop(code[at], None)
        if found is not None:
            kind, storage, _ = found
            world.wait_for_sync(compiled_op, code[at], _device(kind), is_last=True)
            world.release(storage)
        return at + 1

    return step


def _cancel(compiled_op: CompiledOp, world: SimulatedWorld) -> Step:
    """Cancel a borrow that was never acquired."""

    def step(code: list[int], at: int) -> int:
        _, storage, _ = world.borrows.pop(code[at])
        world.release(storage)
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
    "share": _share,
    "acquire": _acquire,
    "release": _release,
    "wait": _wait,
    "cancel": _cancel,
}
