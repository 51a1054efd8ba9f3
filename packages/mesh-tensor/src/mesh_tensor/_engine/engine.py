"""The controller's side of the tensors of one proc mesh: plans, slots, words, and failures."""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mesh_core import MeshError, Region, SupervisionError
from mesh_tensor._dispatch.constant_folding import KnownScalar, can_fold, fold
from mesh_tensor._dispatch.data_dependent import Asked, issue_and_ask
from mesh_tensor._dispatch.fake_propagation import New, propagate
from mesh_tensor._engine.call_site import words_of
from mesh_tensor._engine.failure_propagation import mark_dependants
from mesh_tensor._engine.op_stream import OpStream
from mesh_tensor._engine.plan import Operand
from mesh_tensor._engine.plan_cache import Issue, PlanTable
from mesh_tensor._errors import OpFailed, RanksDisagree
from mesh_tensor._mesh.device_mesh import DeviceMesh, mixed_meshes
from mesh_tensor._remote.function_table import RemoteTable
from mesh_tensor._streams.borrow import Borrows
from mesh_tensor._streams.slot_allocator import Lane, Lanes
from mesh_tensor._streams.stream import default_stream
from mesh_tensor._tensor.meta import MetaTable
from mesh_tensor._tensor.ref import Ref
from mesh_tensor._tensor.tensor import Tensor, become, wrap
from mesh_tensor._worker.step_compiler import module_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mesh_core import Future, ValueMesh
    from mesh_tensor._simulator.simulated_engine import Simulated
    from mesh_tensor._worker.failure import Failure

__all__ = ["Engine"]


@dataclass(frozen=True)
class Fetched:
    """A value that was asked for.

    Attributes:
        engine: Whose.
        ref: Where it is; held until it has come.
        rank: Which process sends it.
        answer: What all processes answer with: nothing but that one, once they have come so far.
    """

    engine: Engine
    ref: Ref
    rank: int
    answer: Future[ValueMesh[Any]]

    def value(self) -> Any:
        """Gives it once the answer is there.

        Raises:
            OpFailed: What it depends on has failed on some process.
        """
        try:
            answers = self.answer.get()
        except SupervisionError as error:
            # With one process all is lost that was made by them together.
            self.engine.stream.fail(error)
            raise
        self.engine.check(self.ref)
        return list(answers.values())[self.rank]


class Engine:
    """The tensors of one proc mesh.

    Args:
        workers: The interpreters of all processes, or what stands in for them.
        size: How many processes there are; tensors may be on any part of them.
        join: Has the processes meet, before the first of them has something for another one.
        simulated: How it is without processes, where there are none.
    """

    def __init__(
        self,
        workers: Any,
        size: int,
        join: Callable[[], None],
        simulated: Simulated | None = None,
    ) -> None:
        #: All processes, by rank.
        self._all = Region.row_major(["procs"], [size])
        self._workers = workers
        self._meet = join
        self._run: Callable[..., Future[Any]] = workers.run.call
        self.simulated = simulated
        self.metas = MetaTable(simulated)
        self.stream = OpStream(self._send, self._on_ack, lingers=simulated is None)
        self._table = PlanTable(self.stream, simulated)
        self._issues = self._table.issues
        self.plans = self._table.plans
        self._define = self._table.define
        self._meshes: dict[tuple[Region, int], DeviceMesh] = {}
        #: By slot, the slot whose storage it has.
        self.bases: list[int] = []
        #: By slot, what it depends on that has failed.
        self.poisoned: dict[int, OpFailed] = {}
        #: Whether operands are looked at one by one: some are lost, or borrowed.
        self.is_watchful = False
        self._is_joined = False
        self.lanes = Lanes(self, default_stream)
        self.borrows = Borrows(self)
        self.remote = RemoteTable(self)

    @property
    def is_over(self) -> bool:
        """Whether processes are gone."""
        with suppress(MeshError):
            self.stream.settle()
        return self.stream.is_over

    def close(self) -> None:
        """Lets go of all values."""
        with suppress(MeshError):
            self._workers.stop().get()

    def mesh(self, region: Region, lane: Lane | None = None) -> DeviceMesh:
        """Gives the mesh of a part of the processes, as a stream has it: by default the default."""
        lane = lane or self.lanes.default
        key = region, lane.number
        found = self._meshes.get(key)
        if found is None:
            found = self._meshes[key] = DeviceMesh(self, region, lane)
        return found

    def issue(
        self,
        mesh: DeviceMesh,
        key: tuple[Any, ...],
        operands: list[Tensor],
        numbers: list[float],
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Issues an operation of torch.

        Raises:
            WrongMesh: The operands are on different meshes.
            UnsupportedOp: It cannot be described to other processes.
            DataDependentError: What it gives depends on values.
            MeshError: The processes are gone.
        """
        plan = self._issues.get(key)
        if plan is None:
            plan = self._plan(mesh, key, operands, func, args, kwargs)
        meta = plan.meta
        if plan.is_scalar is not None:
            return self._issue_on_scalars(plan, operands, numbers, func, args, kwargs)
        if meta is None:
            if type(plan.parts) is Asked:
                return issue_and_ask(self, plan, operands, numbers)
            return self._issue_plan(plan, operands, numbers)
        # Nearly all operations give one new tensor.
        stream = self.stream
        with stream.lock:
            base = None if plan.aliased is None else operands[plan.aliased]._ref
            ref = self._new_ref(base, mesh._lane)
            slots = [one._ref.slot for one in operands]
            if self.is_watchful:
                self.watch(plan, operands, slots, (ref.slot,))
            if numbers:
                places = stream.add_numbers(numbers)
                stream.issue((plan.number, *slots, *places, ref.slot), operands)
            else:
                stream.issue((plan.number, *slots, ref.slot), operands)
        return wrap(meta, ref)

    def item(self, tensor: Tensor) -> Any:
        """Gives the one element of a tensor, if it is the same in all processes.

        Raises:
            OpFailed: Something that it depends on has failed.
            RanksDisagree: It is not.
        """
        if tensor._known_scalar is not None and tensor._known_scalar.holds:
            if self.stream.recorder is not None:
                self.stream.recorder.asked()
            return tensor._known_scalar.value.item()
        mesh = tensor._meta.mesh
        with self.stream.lock:
            self.read([tensor])
            item = self.lanes.endpoint("item", mesh._lane)
            answer = item.call(tensor._ref.slot, mesh._encoded)
        answers = list(answer.get().values())
        self.check(tensor._ref)
        found = [answers[rank] for rank in mesh._region.ranks()]
        first = found[0]
        if any(one != first and not (one != one and first != first) for one in found):
            raise RanksDisagree(
                f"the processes of {mesh} have different values ({first}, "
                f"{next(one for one in found if one != first)}, ...): reduce it, or fetch one"
            )
        return first

    def put(
        self,
        mesh: DeviceMesh,
        value: torch.Tensor,
        is_literal: bool = False,
        part: tuple[tuple[str, ...], int, int] | None = None,
    ) -> Tensor:
        """Sends a tensor of this process to all processes of a mesh.

        Args:
            mesh: Where to.
            value: What is sent.
            is_literal: Whether the program knows its value for good.
            part: Where each process keeps its part only: by which dimensions, cut along which
                dimension of the tensor, into how many.
        """
        if self.stream.recorder is not None and not is_literal:
            self.stream.recorder.sent()
        # What the program writes to its own later is not for those there to see.
        with torch._C._DisableTorchDispatch():
            value = value.detach().clone(memory_format=torch.contiguous_format)
            kept = value if part is None else value.chunk(part[2], part[1])[0].contiguous()
            meta = self.metas.of(mesh, kept)
        key = ("put", meta, part)
        plan = self._issues.get(key) or self._define(
            key,
            mesh,
            New(meta, None),
            kind="put",
            name="put",
            operands=1,
            results=(None,),
            detail=part,
        )
        with self.stream.lock:
            ref = self._new_ref(None, mesh._lane)
            place = self.stream.add_value(value)
            self.stream.issue((plan.number, place, ref.slot))
        made = wrap(meta, ref)
        if is_literal and not meta.shape:
            with torch._C._DisableTorchDispatch():
                made._known_scalar = KnownScalar(value.clone())
        return made

    def rank(self, mesh: DeviceMesh, dims: tuple[str, ...]) -> Tensor:
        """Makes the coordinates of the processes."""
        key = ("rank", mesh, dims)
        plan = self._issues.get(key)
        if plan is None:
            made = New(self.metas.dense(mesh, (), torch.int64, torch.device("cpu")), None)
            plan = self._define(
                key, mesh, made, kind="rank", name="rank", results=(None,), detail=dims
            )
        return self._issue_own(plan, [])

    def fetch(self, tensor: Tensor, coordinates: Mapping[str, int]) -> Fetched:
        """Asks for the value of one process."""
        mesh = tensor._meta.mesh
        region = mesh._region
        missing = [label for label in region.labels if label not in coordinates]
        if coordinates and missing:
            raise ValueError(f"also say where in {', '.join(missing)}, or nothing at all")
        chosen = region.select(**(dict(coordinates) or dict.fromkeys(region.labels, 0)))
        rank = chosen.offset
        with self.stream.lock:
            self.read([tensor])
            answer = self.lanes.endpoint("fetch", mesh._lane).call(tensor._ref.slot, rank)
        return Fetched(self, tensor._ref, rank, answer)

    def check(self, ref: Ref) -> None:
        """Looks whether a value can be had, of which all processes have said that they are done.

        Raises:
            OpFailed: Something that it depends on has failed.
        """
        self.stream.settle()
        error = self.poisoned.get(ref.slot)
        if error is not None:
            again = OpFailed(*error.args)
            raise again from error.__cause__

    def _plan(
        self,
        mesh: DeviceMesh,
        key: tuple[Any, ...],
        operands: list[Tensor],
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Issue:
        meshes = {one._meta.mesh for one in operands}
        if len(meshes) > 1:
            raise mixed_meshes(func, meshes)
        if self.simulated is not None:
            args, kwargs = self.simulated.labelled(args, kwargs)
        outcome = propagate(self.metas, mesh, func, args, kwargs)
        made = self._define(
            key,
            mesh,
            outcome.parts,
            kind="op",
            name=str(func),
            args=outcome.args,
            kwargs=outcome.kwargs,
            operands=len(operands),
            numbers=outcome.numbers,
            results=outcome.results,
            mutated=outcome.mutated,
            detail=module_of(func),
        )
        made.reshaped = outcome.reshaped
        metas = [one._meta for one in operands]
        if type(outcome.parts) is not Asked and any(not meta.shape for meta in metas):
            made.is_scalar = can_fold(func, metas, outcome.metas)
        return made

    def _issue_on_scalars(
        self,
        plan: Issue,
        operands: list[Tensor],
        numbers: list[float],
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        result = self._issue_plan(plan, operands, numbers)
        if any(one._known_scalar is not None for one in operands):
            fold(bool(plan.is_scalar), func, args, kwargs, operands, result)
        return result

    def _issue_plan(
        self, plan: Issue, operands: Sequence[Tensor], numbers: Sequence[float] = ()
    ) -> Any:
        slots = [one._ref.slot for one in operands]
        news: list[Tensor] = []
        with self.stream.lock:
            result = self._made(plan.parts, operands, news)
            results = [one._ref.slot for one in news]
            if self.is_watchful:
                self.watch(plan, operands, slots, results)
            places = self.stream.add_numbers(numbers)
            self.stream.issue((plan.number, *slots, *places, *results), operands)
            for place, meta, aliased in plan.reshaped:
                become(operands[place], meta)
                if aliased is not None:
                    self.rebase(operands[place]._ref, operands[aliased]._ref)
        return result

    def _made(self, of: Any, operands: Sequence[Tensor], news: list[Tensor]) -> Any:
        """Makes what an operation returns; the lock is held.

        Not a function within `_issue_plan`: one that calls itself would hold what it made until the
        garbage is collected.
        """
        if type(of) is New:
            base = None if of.aliased is None else operands[of.aliased]._ref
            news.append(wrap(of.meta, self._new_ref(base, of.meta.mesh._lane)))
            return news[-1]
        if type(of) is Operand:
            return operands[of.index]
        if type(of) in (list, tuple):
            return type(of)([self._made(one, operands, news) for one in of])
        return of

    def _issue_own(self, plan: Issue, operands: Sequence[Tensor]) -> Tensor:
        """Issues what is not of torch, and gives one tensor."""
        made: Tensor = self._issue_plan(plan, operands)
        return made

    def _new_ref(self, base: Ref | None, lane: Lane) -> Ref:
        """Makes a value's place; the lock is held."""
        slot = lane.take_slot()
        if base is not None:
            base = base.base or base
        bases = self.bases
        if slot == len(bases):
            bases.append(slot)
        bases[slot] = slot if base is None else base.slot
        if self.poisoned:
            self.poisoned.pop(slot, None)
        return Ref(slot, self.stream.freed, base)

    def own_slot(self, slot: int) -> None:
        """Has a slot that was taken be the first of its storage; the lock is held."""
        if slot == len(self.bases):
            self.bases.append(slot)
        self.bases[slot] = slot
        self.poisoned.pop(slot, None)

    def rebase(self, ref: Ref, base: Ref) -> None:
        """Notes that a value has the storage of another one now."""
        root = base.base or base
        ref.base = None if root is ref else root
        self.bases[ref.slot] = self.bases[base.slot]

    def watch(
        self,
        plan: Issue,
        operands: Sequence[Any],
        slots: Sequence[int],
        results: Sequence[int],
    ) -> None:
        """Looks at operands one by one before an operation is issued; the lock is held.

        Raises:
            BorrowError: A borrow does not allow it.
        """
        if self.borrows.count:
            self.borrows.check(operands, self.plans[plan.number].mutated)
        if self.poisoned:
            self._pass_on(plan, slots, results)
        self.is_watchful = bool(self.poisoned or self.borrows.count)

    def read(self, operands: Sequence[Any], is_once: bool = False) -> None:
        """Sends all there is, so that values can be asked for; the lock is held.

        Args:
            operands: Of what they are.
            is_once: Whether the same is not asked for a second time.

        Raises:
            BorrowedMutably: One of them may be written to by another stream.
        """
        if self.borrows.count:
            self.borrows.check(operands, ())
        self.stream.ask(is_once)

    def _pass_on(self, plan: Issue, operands: Sequence[int], results: Sequence[int]) -> None:
        """Marks what is made, or written, of values that cannot be had; the lock is held."""
        error = next((self.poisoned[one] for one in operands if one in self.poisoned), None)
        if error is None:
            return
        made = self.plans[plan.number]
        self.poisoned.update(dict.fromkeys(results, error))
        if not made.mutated:
            return
        bases = self.lanes.storages(self.bases)
        written = {bases[operands[place]] for place in made.mutated}
        for slot, base in enumerate(bases):
            if base in written:
                self.poisoned[slot] = error

    def _join(self) -> None:
        """Has the processes meet, before the first of them has something for another one."""
        if self._is_joined:
            return
        self.stream.flush()
        self._meet()
        self._is_joined = True

    def meet(self, groups: Sequence[tuple[DeviceMesh, tuple[str, ...]]]) -> None:
        """Has the processes meet for functions that ask for groups."""
        self._join()
        self.lanes.announce(groups)

    def _send(
        self, first: int, words: bytes, numbers: bytes, plans: list[Any], given: list[Any]
    ) -> Future[Any]:
        if self.lanes.are_many:
            run: Callable[..., Future[Any]] = self._workers.run_on_streams.call
            slots = len(self.bases)
            return run(first, words, numbers, plans, given, slots, self.stream.done)
        return self._run(first, words, numbers, plans, given, len(self.bases))

    def _on_ack(self, ack: ValueMesh[list[Failure]]) -> None:
        # The first that failed is the reason, whichever rank it was on.
        self.hear(sorted(itertools.chain(*ack.values()), key=lambda one: one.number))

    def hear(self, failures: Sequence[Failure]) -> None:
        """Notes what has failed; the same may be told more than once."""
        with self.stream.lock:
            for failure in failures:
                if failure.number >= self.stream.done:
                    self._note(failure)

    def _note(self, failure: Failure) -> None:
        """Marks all that depends on what has failed."""
        stack = words_of(self.stream.place_of(failure.number), failure.within)
        what = f"{type(failure.error).__name__}: {failure.error}"
        error = OpFailed(failure.op, failure.rank, stack, what)
        error.__cause__ = failure.error
        first, words = self.stream.words_since_ack()
        bases = self.lanes.storages(self.bases)
        lost = mark_dependants(failure.number, first, words, self.plans, bases)
        for slot in lost:
            self.poisoned.setdefault(slot, error)
        self.is_watchful = True
