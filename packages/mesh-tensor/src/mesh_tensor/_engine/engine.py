"""The controller of the tensors of one proc mesh: compiled ops, slots and failures."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from mesh_core import MeshError, Region
from mesh_tensor._collectives.collectives import reduce, reduce_, to_mesh
from mesh_tensor._dispatch.constant_folding import KnownScalar, can_fold, fold
from mesh_tensor._dispatch.custom_ops import module_of
from mesh_tensor._dispatch.data_dependent import issue_and_fetch
from mesh_tensor._dispatch.dispatcher import dispatch, dispatch_in_mode
from mesh_tensor._dispatch.fake_propagation import propagate
from mesh_tensor._engine.fetched import Fetched
from mesh_tensor._errors import OpFailed, RanksDisagree
from mesh_tensor._instructions.call_site import format_call_site
from mesh_tensor._instructions.compiled_op import Operand
from mesh_tensor._instructions.compiled_op_cache import CacheEntry, CompiledOpCache
from mesh_tensor._instructions.failure_propagation import mark_dependants
from mesh_tensor._instructions.instruction_stream import InstructionStream
from mesh_tensor._instructions.results import DataDependentResults, NewTensor
from mesh_tensor._mesh.device_mesh import DeviceMesh, mixed_meshes
from mesh_tensor._remote.function_table import RemoteTable
from mesh_tensor._streams.borrow import Borrows
from mesh_tensor._streams.slot_allocator import StreamSlots, StreamTable
from mesh_tensor._streams.stream import default_stream
from mesh_tensor._tensor.dispatch_backend import DispatchBackend, backend_slot
from mesh_tensor._tensor.meta import MetaTable
from mesh_tensor._tensor.ref import Ref
from mesh_tensor._tensor.tensor import Tensor, set_meta, wrap
from mesh_tensor._transfers.fetch import fetch_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mesh_core import Future, ValueMesh
    from mesh_tensor._simulator.simulated_engine import Simulated
    from mesh_tensor._worker.failure import Failure

__all__ = ["Engine"]

# Tensors are below the modules that issue operations. No tensor exists before this registration,
# because engines create all tensors.
backend_slot.backend = DispatchBackend(
    dispatch, dispatch_in_mode, reduce, reduce_, to_mesh, fetch_shard
)


class Engine:
    """The tensors of one proc mesh.

    Args:
        workers: The interpreters of all processes, or a simulated backend.
        size: The number of processes. A tensor may be on any part of them.
        join: Initializes communication between the processes. It is called before they exchange
            data for the first time.
        simulated: The simulation, if there are no processes.
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
        self._init_process_groups = join
        self._run: Callable[..., Future[Any]] = workers.run.call
        self.simulated = simulated
        self.metas = MetaTable(simulated)
        self.stream = InstructionStream(
            self._send, self._on_ack, flushes_when_idle=simulated is None
        )
        self._op_cache = CompiledOpCache(self.stream, simulated)
        self._entries = self._op_cache.entries
        self.compiled_ops = self._op_cache.compiled_ops
        self._define = self._op_cache.define
        self._meshes: dict[tuple[Region, int], DeviceMesh] = {}
        #: For each slot, the slot that owns its storage.
        self.bases: list[int] = []
        #: For each slot whose value is lost, the failure that it depends on.
        self.failed_slots: dict[int, OpFailed] = {}
        #: Whether operands must be checked one by one, because some are lost or borrowed.
        self.needs_operand_checks = False
        self._is_joined = False
        self.stream_table = StreamTable(self, default_stream)
        self.borrows = Borrows(self)
        self.remote = RemoteTable(self)

    @property
    def is_over(self) -> bool:
        """Whether processes have exited."""
        with suppress(MeshError):
            self.stream.settle()
        return self.stream.is_over

    def close(self) -> None:
        """Free all values."""
        with suppress(MeshError):
            self._workers.stop().get()

    def mesh(self, region: Region, stream_slots: StreamSlots | None = None) -> DeviceMesh:
        """Return the mesh of a region on a stream; by default, on the default stream."""
        stream_slots = stream_slots or self.stream_table.default
        key = region, stream_slots.number
        found = self._meshes.get(key)
        if found is None:
            found = self._meshes[key] = DeviceMesh(self, region, stream_slots)
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
        """Issue a PyTorch operation.

        Raises:
            WrongMesh: The operands are on different meshes.
            UnsupportedOp: The operation cannot be described to the processes.
            DataDependentError: The result depends on values in a way that is not supported.
            MeshError: The processes have exited.
        """
        entry = self._entries.get(key)
        if entry is None:
            entry = self._compile(mesh, key, operands, func, args, kwargs)
        meta = entry.meta
        if entry.is_scalar is not None:
            return self._issue_on_scalars(entry, operands, numbers, func, args, kwargs)
        if meta is None:
            if type(entry.parts) is DataDependentResults:
                return issue_and_fetch(self, entry, operands, numbers)
            return self._issue_entry(entry, operands, numbers)
        # This is the fast path: nearly all operations return one new tensor.
        stream = self.stream
        with stream.lock:
            base = None if entry.aliased is None else operands[entry.aliased]._ref
            ref = self._new_ref(base, mesh._stream_slots)
            slots = [one._ref.slot for one in operands]
            if self.needs_operand_checks:
                self.check_operands(entry, operands, slots, (ref.slot,))
            if numbers:
                places = stream.add_numbers(numbers)
                stream.issue((entry.opcode, *slots, *places, ref.slot), operands)
            else:
                stream.issue((entry.opcode, *slots, ref.slot), operands)
        return wrap(meta, ref)

    def item(self, tensor: Tensor) -> Any:
        """Return the single element of a tensor, which must be the same in all processes.

        Raises:
            OpFailed: Something that the tensor depends on has failed.
            RanksDisagree: The processes have different values.
        """
        if tensor._known_scalar is not None and tensor._known_scalar.holds:
            if self.stream.recorder is not None:
                self.stream.recorder.on_wait()
            return tensor._known_scalar.value.item()
        mesh = tensor._meta.mesh
        with self.stream.lock:
            self.read([tensor])
            item = self.stream_table.endpoint("item", mesh._stream_slots)
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
        """Send a local tensor to all processes of a mesh.

        Args:
            mesh: The destination.
            value: The tensor.
            is_literal: Whether the value is a constant that the program knows from now on.
            part: If given, each process keeps only its part: the dimensions of the mesh that select
                the part, the dimension of the tensor that is split, and the number of parts.
        """
        if self.stream.recorder is not None and not is_literal:
            self.stream.recorder.on_put()
        # Copy the tensor, so that later writes of the program are not visible to the processes.
        with torch._C._DisableTorchDispatch():
            value = value.detach().clone(memory_format=torch.contiguous_format)
            kept = value if part is None else value.chunk(part[2], part[1])[0].contiguous()
            meta = self.metas.of(mesh, kept)
        key = ("put", meta, part)
        entry = self._entries.get(key) or self._define(
            key,
            mesh,
            NewTensor(meta, None),
            kind="put",
            name="put",
            operands=1,
            results=(None,),
            kwargs={"device": meta.device},
            detail=part,
        )
        with self.stream.lock:
            ref = self._new_ref(None, mesh._stream_slots)
            place = self.stream.add_value(value)
            self.stream.issue((entry.opcode, place, ref.slot))
        made = wrap(meta, ref)
        if is_literal and not meta.shape:
            with torch._C._DisableTorchDispatch():
                made._known_scalar = KnownScalar(value.clone())
        return made

    def rank(self, mesh: DeviceMesh, dims: tuple[str, ...]) -> Tensor:
        """Create a tensor with the coordinates of the processes."""
        key = ("rank", mesh, dims)
        entry = self._entries.get(key)
        if entry is None:
            made = NewTensor(self.metas.dense(mesh, (), torch.int64, torch.device("cpu")), None)
            entry = self._define(
                key, mesh, made, kind="rank", name="rank", results=(None,), detail=dims
            )
        return self._issue_own(entry, [])

    def fetch(self, tensor: Tensor, coordinates: Mapping[str, int]) -> Fetched:
        """Request the value of one process."""
        mesh = tensor._meta.mesh
        region = mesh._region
        missing = [label for label in region.labels if label not in coordinates]
        if coordinates and missing:
            raise ValueError(
                f"pass a coordinate for {', '.join(missing)} too, or no coordinates at all"
            )
        chosen = region.select(**(dict(coordinates) or dict.fromkeys(region.labels, 0)))
        rank = chosen.offset
        with self.stream.lock:
            self.read([tensor])
            answer = self.stream_table.endpoint("fetch", mesh._stream_slots).call(
                tensor._ref.slot, rank
            )
        return Fetched(self, tensor._ref, rank, answer)

    def check(self, ref: Ref) -> None:
        """Check that a value exists. All processes must have acknowledged the operations before it.

        Raises:
            OpFailed: Something that the value depends on has failed.
        """
        self.stream.settle()
        error = self.failed_slots.get(ref.slot)
        if error is not None:
            again = OpFailed(*error.args)
            raise again from error.__cause__

    def _compile(
        self,
        mesh: DeviceMesh,
        key: tuple[Any, ...],
        operands: list[Tensor],
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> CacheEntry:
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
        if type(outcome.parts) is not DataDependentResults and any(
            not meta.shape for meta in metas
        ):
            made.is_scalar = can_fold(func, metas, outcome.metas)
        return made

    def _issue_on_scalars(
        self,
        entry: CacheEntry,
        operands: list[Tensor],
        numbers: list[float],
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        result = self._issue_entry(entry, operands, numbers)
        if any(one._known_scalar is not None for one in operands):
            fold(bool(entry.is_scalar), func, args, kwargs, operands, result)
        return result

    def _issue_entry(
        self, entry: CacheEntry, operands: Sequence[Tensor], numbers: Sequence[float] = ()
    ) -> Any:
        slots = [one._ref.slot for one in operands]
        news: list[Tensor] = []
        with self.stream.lock:
            result = self._build_result(entry.parts, operands, news)
            results = [one._ref.slot for one in news]
            if self.needs_operand_checks:
                self.check_operands(entry, operands, slots, results)
            places = self.stream.add_numbers(numbers)
            self.stream.issue((entry.opcode, *slots, *places, *results), operands)
            for place, meta, aliased in entry.reshaped:
                set_meta(operands[place], meta)
                if aliased is not None:
                    self.rebase(operands[place]._ref, operands[aliased]._ref)
        return result

    def _build_result(self, of: Any, operands: Sequence[Tensor], news: list[Tensor]) -> Any:
        """Create the result of an operation. The caller holds the lock.

        This is a method and not a nested function of `_issue_entry`, because a recursive closure
        would keep the results alive until the next garbage collection.
        """
        if type(of) is NewTensor:
            base = None if of.aliased is None else operands[of.aliased]._ref
            news.append(wrap(of.meta, self._new_ref(base, of.meta.mesh._stream_slots)))
            return news[-1]
        if type(of) is Operand:
            return operands[of.index]
        if type(of) in (list, tuple):
            return type(of)([self._build_result(one, operands, news) for one in of])
        return of

    def _issue_own(self, entry: CacheEntry, operands: Sequence[Tensor]) -> Tensor:
        """Issue an operation of Mesh itself, which returns one tensor."""
        made: Tensor = self._issue_entry(entry, operands)
        return made

    def _new_ref(self, base: Ref | None, stream_slots: StreamSlots) -> Ref:
        """Allocate the slot of a new value. The caller holds the lock."""
        slot = stream_slots.take_slot()
        if base is not None:
            base = base.base or base
        bases = self.bases
        if slot == len(bases):
            bases.append(slot)
        bases[slot] = slot if base is None else base.slot
        if self.failed_slots:
            self.failed_slots.pop(slot, None)
        return Ref(slot, self.stream.freed, base)

    def own_slot(self, slot: int) -> None:
        """Make an allocated slot the owner of its storage. The caller holds the lock."""
        if slot == len(self.bases):
            self.bases.append(slot)
        self.bases[slot] = slot
        self.failed_slots.pop(slot, None)

    def rebase(self, ref: Ref, base: Ref) -> None:
        """Record that a value now shares the storage of another one."""
        root = base.base or base
        ref.base = None if root is ref else root
        self.bases[ref.slot] = self.bases[base.slot]

    def check_operands(
        self,
        entry: CacheEntry,
        operands: Sequence[Any],
        slots: Sequence[int],
        results: Sequence[int],
    ) -> None:
        """Check the operands of an operation before it is issued. The caller holds the lock.

        Raises:
            BorrowError: A borrow does not allow the operation.
        """
        if self.borrows.count:
            self.borrows.check(operands, self.compiled_ops[entry.opcode].mutated)
        if self.failed_slots:
            self._propagate_failure(entry, slots, results)
        self.needs_operand_checks = bool(self.failed_slots or self.borrows.count)

    def read(self, operands: Sequence[Any], is_once: bool = False) -> None:
        """Send all pending operations, so that values can be requested. The caller holds the lock.

        Args:
            operands: The tensors whose values are requested.
            is_once: Whether the result is cached, so that the request is not repeated.

        Raises:
            BorrowedMutably: Another stream may write to one of the operands.
        """
        if self.borrows.count:
            self.borrows.check(operands, ())
        self.stream.flush_for_reply(is_once)

    def _propagate_failure(
        self, entry: CacheEntry, operands: Sequence[int], results: Sequence[int]
    ) -> None:
        """Mark results and mutated operands as lost if an operand is lost. Requires the lock."""
        error = next((self.failed_slots[one] for one in operands if one in self.failed_slots), None)
        if error is None:
            return
        made = self.compiled_ops[entry.opcode]
        self.failed_slots.update(dict.fromkeys(results, error))
        if not made.mutated:
            return
        bases = self.stream_table.storages(self.bases)
        written = {bases[operands[place]] for place in made.mutated}
        for slot, base in enumerate(bases):
            if base in written:
                self.failed_slots[slot] = error

    def _join(self) -> None:
        """Initialize communication between the processes, once."""
        if self._is_joined:
            return
        self.stream.flush()
        self._init_process_groups()
        self._is_joined = True

    def create_groups(self, groups: Sequence[tuple[DeviceMesh, tuple[str, ...]]]) -> None:
        """Initialize communication for functions that use process groups."""
        self._join()
        self.stream_table.announce(groups)

    def _send(
        self,
        first: int,
        instructions: bytes,
        numbers: bytes,
        compiled_ops: list[Any],
        given: list[Any],
    ) -> Future[Any]:
        if self.stream_table.are_many:
            run: Callable[..., Future[Any]] = self._workers.run_on_streams.call
            slots = len(self.bases)
            return run(first, instructions, numbers, compiled_ops, given, slots, self.stream.done)
        return self._run(first, instructions, numbers, compiled_ops, given, len(self.bases))

    def _on_ack(self, ack: ValueMesh[list[Failure]]) -> None:
        # The failure that comes first in program order is the reason, whichever rank reported it.
        self.record_failures(sorted(itertools.chain(*ack.values()), key=lambda one: one.number))

    def record_failures(self, failures: Sequence[Failure]) -> None:
        """Record failures. The same failure may be reported several times."""
        with self.stream.lock:
            for failure in failures:
                if failure.number >= self.stream.done:
                    self._record_failure(failure)

    def _record_failure(self, failure: Failure) -> None:
        """Mark all values that depend on a failure."""
        stack = format_call_site(self.stream.call_site_of(failure.number), failure.within)
        what = f"{type(failure.error).__name__}: {failure.error}"
        error = OpFailed(failure.op, failure.rank, stack, what)
        error.__cause__ = failure.error
        first, instructions = self.stream.instructions_since_ack()
        bases = self.stream_table.storages(self.bases)
        lost = mark_dependants(failure.number, first, instructions, self.compiled_ops, bases)
        for slot in lost:
            self.failed_slots.setdefault(slot, error)
        self.needs_operand_checks = True
