"""The execution of compiled ops by simulated processes: memory allocated, and time spent."""

from __future__ import annotations

import itertools
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from mesh_core import Region
from mesh_tensor._collectives.collective_ops import Move, Reduction
from mesh_tensor._instructions.results import NewTensor
from mesh_tensor._remote.call_protocol import RemoteCall, TensorPart
from mesh_tensor._simulator.borrows import BORROWING
from mesh_tensor._simulator.op_work import device_of, nbytes_of, work_of
from mesh_tensor._simulator.rank_groups import HOST
from mesh_tensor._tensor.meta import Kind
from mesh_tensor._trace.op_sequence import encode_op, last_uses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mesh_tensor._instructions.compiled_op import CompiledOp
    from mesh_tensor._instructions.compiled_op_cache import CacheEntry
    from mesh_tensor._simulator.rank_groups import RankGroup
    from mesh_tensor._simulator.world import SimulatedWorld
    from mesh_tensor._trace.op_sequence import OpSequence

    #: Receives the instructions and the position after its opcode, and returns the position of the
    #: next operation.
    SimulatedStep = Callable[[list[int], int], int]

__all__ = ["step_of"]


def step_of(
    compiled_op: CompiledOp,
    entry: CacheEntry,
    world: SimulatedWorld,
    steps: Callable[[int], SimulatedStep],
) -> SimulatedStep:
    """Return the step that executes a compiled op.

    Args:
        compiled_op: The compiled op.
        entry: The description of its results.
        world: The simulated processes.
        steps: Returns the step of another compiled op.
    """
    if compiled_op.kind in ("function", "groups"):
        return lambda _, at: at
    if compiled_op.kind in BORROWING:
        return BORROWING[compiled_op.kind](compiled_op, world)
    if compiled_op.kind == "remote":
        return _RemoteStep(compiled_op, world)
    if compiled_op.kind == "replay":
        return _ReplayStep(compiled_op, world, steps)
    new_values = [(one.meta.kind, one.aliased) for one in _new_tensors(entry.parts)]
    if compiled_op.kind == "reduce":
        return _ReduceStep(compiled_op, new_values, world)
    if compiled_op.kind == "move":
        return _MoveStep(compiled_op, new_values, world)
    if compiled_op.kind in ("put", "rank"):
        return _PutStep(compiled_op, new_values, world)
    return _OpStep(compiled_op, new_values, world, entry)


def _new_tensors(parts: Any) -> Iterator[NewTensor]:
    if type(parts) is NewTensor:
        yield parts
    elif type(parts) in (list, tuple):
        for one in parts:
            yield from _new_tensors(one)


class _Step:
    """One compiled op: its results are as described, and its duration comes from the cost model."""

    def __init__(
        self,
        compiled_op: CompiledOp,
        new_values: Sequence[tuple[Kind, int | None]],
        world: SimulatedWorld,
    ) -> None:
        self.compiled_op = compiled_op
        self.world = world
        self.first = compiled_op.operands + compiled_op.numbers
        self.rest_len = compiled_op.instruction_len - 1
        self.new_values = [
            (kind, aliased, nbytes_of(kind) if aliased is None else 0)
            for kind, aliased in new_values
        ]

    def keep(self, code: list[int], at: int) -> None:
        """Allocate the memory of the results."""
        world, first = self.world, at + self.first
        for place, (kind, aliased, nbytes) in enumerate(self.new_values):
            base = None if aliased is None else world.storage_at(code[at + aliased])
            world.store(code[first + place], kind, base, nbytes, self.compiled_op.ranks)


class _OpStep(_Step):
    """A PyTorch operation."""

    def __init__(
        self,
        compiled_op: CompiledOp,
        new_values: Sequence[tuple[Kind, int | None]],
        world: SimulatedWorld,
        entry: CacheEntry,
    ) -> None:
        super().__init__(compiled_op, new_values, world)
        self._reshaped = [(place, meta.kind, aliased) for place, meta, aliased in entry.reshaped]
        self._device = HOST
        self._cost_s: float | None = None
        self._is_known = False

    def __call__(self, code: list[int], at: int) -> int:
        if not self._is_known:
            self._learn(code, at)
        self.world.compute(self.compiled_op, self._device, self._cost_s)
        self.keep(code, at)
        for place, kind, aliased in self._reshaped:
            base = None if aliased is None else self.world.storage_at(code[at + aliased])
            self.world.reshape(code[at + place], kind, base)
        return at + self.rest_len

    def _learn(self, code: list[int], at: int) -> None:
        world, compiled_op = self.world, self.compiled_op
        operands = [world.kind_at(slot) for slot in code[at : at + compiled_op.operands]]
        results = [(kind, aliased) for kind, aliased, _ in self.new_values]
        work = work_of(compiled_op, operands, results)
        self._is_known = True
        if work is None:
            return
        types = {kind.device.type for kind in (*work.operands, *work.results)}
        self._device = work.device
        if len(types) > 1 and compiled_op.name in ("aten._to_copy.default", "aten.copy_.default"):
            self._cost_s = world.model.copy_s(work.nbytes // 2)
        else:
            self._cost_s = world.model.op_s(work)


class _PutStep(_Step):
    """A value that the program sends."""

    def __call__(self, code: list[int], at: int) -> int:
        nbytes = sum(nbytes for *_, nbytes in self.new_values)
        if self.compiled_op.kind == "put":
            self.world.receive(self.compiled_op, nbytes)
        (kind, _, _), slot = self.new_values[0], code[at + self.rest_len - 1]
        self.world.store(slot, kind, None, nbytes, self.compiled_op.ranks)
        return at + self.rest_len


class _Collective(NamedTuple):
    """Rank groups that take part in a collective, and its duration.

    Attributes:
        rank_groups: The rank groups.
        cost_s: The duration after all of them have reached it, in seconds.
    """

    rank_groups: list[RankGroup]
    cost_s: float


class _GroupStep(_Step):
    """An operation that processes execute together, each in its group."""

    device: torch.device

    def groups(self) -> Iterator[tuple[Sequence[int], float]]:
        """Yield the ranks of each group, and the duration of its operation."""
        raise NotImplementedError

    def __init__(
        self,
        compiled_op: CompiledOp,
        new_values: Sequence[tuple[Kind, int | None]],
        world: SimulatedWorld,
    ) -> None:
        super().__init__(compiled_op, new_values, world)
        self._version = -1
        self._collectives: list[_Collective] = []
        self._groups: list[tuple[Sequence[int], float]] | None = None

    def synchronize(self) -> None:
        """Spend the time of the operation."""
        world = self.world
        if self._version != world.rank_groups.version:
            self._collectives = self._find_collectives()
            self._version = world.rank_groups.version
        for rank_groups, cost_s in self._collectives:
            world.synchronize(self.compiled_op, self.device.type, rank_groups, cost_s)

    def _find_collectives(self) -> list[_Collective]:
        rank_groups = self.world.rank_groups
        if self._groups is None:
            self._groups = list(self.groups())
        marks: dict[int, tuple[frozenset[int], float]] = {}
        for ranks, cost_s in self._groups:
            mark = frozenset(rank_groups.of(rank).number for rank in ranks), cost_s
            marks.update(dict.fromkeys(ranks, mark))
        rank_groups.split(marks)
        # Groups that consist of the same rank groups do the same at the same time.
        found = {
            (frozenset(rank_groups.of(rank).number for rank in ranks), cost_s): ranks
            for ranks, cost_s in self._groups
        }
        return [_Collective(rank_groups.among(ranks), cost) for (_, cost), ranks in found.items()]


class _ReduceStep(_GroupStep):
    """A reduction."""

    def __init__(
        self,
        compiled_op: CompiledOp,
        new_values: Sequence[tuple[Kind, int | None]],
        world: SimulatedWorld,
    ) -> None:
        super().__init__(compiled_op, new_values, world)
        self._how: Reduction = compiled_op.detail
        self.device = self._how.device

    def __call__(self, code: list[int], at: int) -> int:
        self.synchronize()
        self.keep(code, at)
        return at + self.rest_len

    def groups(self) -> Iterator[tuple[Sequence[int], float]]:
        how, world = self._how, self.world
        region = Region.decode(self.compiled_op.ranks)
        nbytes = torch.Size(how.shape).numel() * how.dtype.itemsize
        rest = [label for label in region.labels if label not in how.dims]
        size = torch.Size(region.size(dim) for dim in how.dims).numel()
        kind = "reduce_scatter" if how.scatter else "all_reduce"
        if how.op == "stack":
            kind = "all_to_all" if how.scatter else "all_gather"
            nbytes *= 1 if how.scatter else size
        for place in itertools.product(*(range(region.size(label)) for label in rest)):
            ranks = region.select(**dict(zip(rest, place, strict=True))).ranks()
            yield ranks, world.model.collective_s(kind, nbytes, world.shape_of(ranks))


class _MoveStep(_GroupStep):
    """A move of values between processes."""

    def __init__(
        self,
        compiled_op: CompiledOp,
        new_values: Sequence[tuple[Kind, int | None]],
        world: SimulatedWorld,
    ) -> None:
        super().__init__(compiled_op, new_values, world)
        self._how: Move = compiled_op.detail
        self.device = self._how.device
        goals = sorted({rank for _, to in self._how.routes for rank in to})
        whole = Region.row_major(["procs"], [world.size])
        #: The processes that hold the value afterwards.
        self._goals = whole.select(procs=goals).encode()

    def __call__(self, code: list[int], at: int) -> int:
        self.synchronize()
        kind, _, nbytes = self.new_values[0]
        self.world.store(code[at + 1], kind, None, nbytes, self._goals)
        return at + self.rest_len

    def groups(self) -> Iterator[tuple[Sequence[int], float]]:
        world = self.world
        nbytes = torch.Size(self._how.shape).numel() * self._how.dtype.itemsize
        for source, goals in self._how.routes:
            others = [rank for rank in goals if rank != source]
            ranks = [source, *others]
            cost_s = 0.0
            if others:
                cost_s = world.model.send_s(nbytes, len(others), world.shape_of(ranks))
            yield ranks, cost_s


class _RemoteStep(_Step):
    """A remote function of the program."""

    def __init__(self, compiled_op: CompiledOp, world: SimulatedWorld) -> None:
        super().__init__(compiled_op, [], world)
        self._call: RemoteCall = compiled_op.detail

    def __call__(self, code: list[int], at: int) -> int:
        world, call = self.world, self._call
        slots = code[at : at + self.compiled_op.operands]
        operands = [world.values[slot] for slot in slots]
        kinds = [one.kind for one in operands if one is not None and one.kind is not None]
        parts = [(place, _kind_of(part)) for place, part in call.kept]
        made = [kind for _, kind in parts if kind is not None]
        blob = world.given[code[at + self.compiled_op.operands]]
        cost_s = world.remote.seconds(self.compiled_op, blob, operands, made)
        world.compute(self.compiled_op, device_of([*kinds, *made]), cost_s)
        by_place: dict[int, int] = {}
        for index, ((place, part), (_, kind)) in enumerate(zip(call.kept, parts, strict=True)):
            slot = by_place[place] = code[at + self.first + index]
            base = None
            if isinstance(part, TensorPart) and part.aliased is not None:
                of = slots[part.aliased] if part.aliased >= 0 else by_place[~part.aliased]
                base = world.storage_at(of)
            nbytes = nbytes_of(kind) if kind is not None and base is None else 0
            world.store(slot, kind, base, nbytes, self.compiled_op.ranks)
        return at + self.rest_len


class _ReplayStep(_Step):
    """A trace: its operations one by one, with separate values."""

    def __init__(
        self, compiled_op: CompiledOp, world: SimulatedWorld, steps: Callable[[int], SimulatedStep]
    ) -> None:
        super().__init__(compiled_op, [], world)
        body: OpSequence = compiled_op.detail
        self._inputs, self._results = body.inputs, body.results
        self._values: list[Any] = [None] * body.values
        self._given: list[Any] = []
        numbers = array("d")
        dying = last_uses(body.ops, body)
        self._ops: list[tuple[SimulatedStep, list[int], list[int]]] = []
        for op, done in zip(body.ops, dying, strict=True):
            inner = body.compiled_ops[op.compiled_op]
            instruction = encode_op(inner, op, self._given, numbers)
            self._ops.append((steps(inner.opcode), instruction, done))

    def __call__(self, code: list[int], at: int) -> int:
        world = self.world
        outer, given = world.values, world.given
        inner = self._values
        for number, slot in zip(
            self._inputs, code[at : at + self.compiled_op.operands], strict=True
        ):
            inner[number] = outer[slot]
        world.values, world.given = inner, self._given
        for index, (step, instruction, dying) in enumerate(self._ops):
            world.within = index
            step(instruction, 1)
            for number in dying:
                world.free(number)
        world.values, world.given, world.within = outer, given, None
        for number, slot in zip(
            self._results, code[at + self.first : at + self.rest_len], strict=True
        ):
            outer[slot] = inner[number]
        inner[:] = [None] * len(inner)
        return at + self.rest_len


def _kind_of(part: Any) -> Kind | None:
    if not isinstance(part, TensorPart):
        return None
    return Kind(
        torch.Size(part.shape),
        part.strides,
        part.offset,
        part.dtype,
        part.device,
        torch.strided,
        lazy=0,
    )
