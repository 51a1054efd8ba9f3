"""The remote functions of one engine: sent to the processes once, and called by number."""

from __future__ import annotations

import itertools
import pickle
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import cloudpickle  # type: ignore[import-untyped,unused-ignore]
import torch
from torch.utils import _pytree as pytree

from mesh_tensor._errors import OpFailed, RanksDisagree, TensorError
from mesh_tensor._instructions.call_site import capture_call_site, format_call_site
from mesh_tensor._instructions.compiled_op import Operand
from mesh_tensor._mesh.activation import no_mesh
from mesh_tensor._remote.call_protocol import (
    ConstantPart,
    FirstCallResult,
    FunctionCode,
    ObjectPart,
    RemoteCall,
    ResultSpec,
    TensorPart,
)
from mesh_tensor._remote.opaque_ref import opaque_handle
from mesh_tensor._tensor.meta import Kind
from mesh_tensor._tensor.tensor import Tensor, wrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core import ProcMesh
    from mesh_tensor._engine.engine import Engine
    from mesh_tensor._mesh.device_mesh import DeviceMesh
    from mesh_tensor._remote.arguments import Arguments
    from mesh_tensor._tensor.ref import Ref

__all__ = ["RemoteTable", "code_of"]

Target = Callable[..., Any] | str


class RemoteTable:
    """The functions that the processes of an engine have received.

    Args:
        engine: The engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: For each function, the number of the compiled op that sent it.
        self.functions: dict[Any, int] = {}
        self._entries: dict[Any, Any] = {}
        self._tokens = itertools.count(1)
        self._canceller: Any = None
        #: The result specs of actor endpoints, by rule and kind of arguments.
        self.actor_result_specs: dict[Any, ResultSpec] = {}

    def number_of(self, target: Target, code: FunctionCode) -> int:
        """Return the number of a function; send the function first if it is new."""
        number = self.functions.get(target)
        if number is None:
            engine = self._engine
            entry = engine._define(
                None, engine.mesh(engine._all), None, kind="function", name=code.name, detail=code
            )
            number = self.functions[target] = entry.opcode
        return number

    def issue(
        self, number: int, name: str, arguments: Arguments, blob: bytes, result_spec: ResultSpec
    ) -> Any:
        """Call a function whose result spec is known, without waiting."""
        entry = self._compile("remote", number, name, arguments, result_spec)
        return self._issue(entry, arguments, result_spec, blob)

    def attempt(
        self, number: int, name: str, arguments: Arguments, blob: bytes
    ) -> tuple[ResultSpec, Any]:
        """Call a function to observe its results, and wait for them.

        Raises:
            OpFailed: The function, or something that it depends on, failed on some process.
            RanksDisagree: The processes return different results.
        """
        engine = self._engine
        token = next(self._tokens) & 0x7FFFFFFF
        workers = engine._workers._with_region(arguments.mesh._region)
        with engine.stream.lock:
            # It is not known yet which operands the function writes to.
            engine.read(arguments.operands, is_once=True)
            attempt = engine.stream_table.endpoint("attempt", arguments.mesh._stream_slots, workers)
            answer = attempt.call(number, blob, arguments.slots, token)
        try:
            result_spec = self._agreed(name, arguments, list(answer.get().values()))
        except TensorError:
            workers.drop_held.broadcast(token)
            raise
        entry = self._compile("adopt", number, name, arguments, result_spec)
        return result_spec, self._issue(entry, arguments, result_spec, None, token)

    def canceller(self, procs: ProcMesh, actor: type[Any]) -> Any:
        """Return the actors that cancel calls which are not served."""
        if self._canceller is None:
            self._canceller = procs.spawn("mesh_tensor_canceller", actor)
        return self._canceller

    def issue_actor_call(
        self, name: str, arguments: Arguments, request: object, result_spec: ResultSpec, key: Any
    ) -> Any:
        """Pass tensors to actors for one call; return the call's results."""
        entry = self._compile("actor_call", key, name, arguments, result_spec)
        return self._issue(entry, arguments, result_spec, request)

    def invoke(
        self, number: int, arguments: Arguments, blob: bytes, verb: str, mesh: DeviceMesh
    ) -> Any:
        """Call a function for its value, by one of the verbs of endpoints."""
        engine = self._engine
        self._invalidate_known_scalars(arguments)
        workers = engine._workers._with_region(mesh._region)
        with engine.stream.lock:
            engine.read(arguments.operands)
            invoke = engine.stream_table.endpoint("invoke", arguments.mesh._stream_slots, workers)
            return getattr(invoke, verb)(number, blob, arguments.slots)

    def _agreed(
        self, name: str, arguments: Arguments, first_calls: Sequence[FirstCallResult]
    ) -> ResultSpec:
        if any(trial.has_failed_operand for trial in first_calls):
            for one in arguments.operands:
                self._engine.check(one._ref)
        ranks = arguments.mesh._region.ranks()
        for rank, trial in zip(ranks, first_calls, strict=True):
            if trial.error is not None:
                what = f"{type(trial.error).__name__}: {trial.error}"
                error = OpFailed(name, rank, format_call_site(capture_call_site()), what)
                raise error from trial.error
        first = first_calls[0].result_spec
        assert first is not None
        for rank, trial in zip(ranks, first_calls, strict=True):
            if trial.result_spec != first:
                raise RanksDisagree(
                    f"the results of {name} on rank {rank} and on rank {ranks[0]} differ: tensors"
                    " must be alike, and other values equal"
                )
        return first

    def _compile(
        self, kind: str, number: Any, name: str, arguments: Arguments, result_spec: ResultSpec
    ) -> Any:
        kept = tuple(
            (place, part)
            for place, part in enumerate(result_spec.parts)
            if isinstance(part, (TensorPart, ObjectPart))
        )
        operands = len(arguments.operands)
        returned = tuple(
            (place, part.index)
            for place, part in enumerate(result_spec.parts)
            if isinstance(part, Operand)
        )
        # The results of an attempt have already been compared, and may contain values of any type.
        constants = () if kind == "adopt" else result_spec.constants
        mesh, count = arguments.mesh, len(result_spec.parts)
        objects = tuple(
            place for place, one in enumerate(arguments.operands) if type(one) is not Tensor
        )
        call = RemoteCall(number, kept, returned, constants, objects, count, result_spec.is_checked)
        # Values of different types can be equal.
        types = tuple(type(value) for _, value in constants)
        key = (kind, mesh, operands, call, types, result_spec.mutated)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._engine._define(
                None,
                mesh,
                None,
                kind=kind,
                name=name,
                operands=operands,
                numbers=1,
                results=tuple(place for place, _ in kept),
                mutated=result_spec.mutated,
                detail=call,
            )
        return entry

    def _issue(
        self,
        entry: Any,
        arguments: Arguments,
        result_spec: ResultSpec,
        given: object | None,
        token: int = 0,
    ) -> Any:
        engine = self._engine
        stream, slots = engine.stream, arguments.slots
        self._invalidate_known_scalars(arguments)
        for place in result_spec.mutated:
            if type(arguments.operands[place]) is Tensor:
                torch.autograd.graph.increment_version(arguments.operands[place])
        leaves: list[Any] = []
        results: list[int] = []
        with stream.lock:
            for part in result_spec.parts:
                leaf = self._result(part, arguments, leaves)
                leaves.append(leaf)
                if isinstance(part, (TensorPart, ObjectPart)):
                    results.append(leaf._ref.slot)
            if engine.needs_operand_checks:
                engine.check_operands(entry, arguments.operands, slots, results)
            argument = token if given is None else stream.add_value(given)
            stream.issue((entry.opcode, *slots, argument, *results), arguments.operands)
        return pytree.tree_unflatten(leaves, result_spec.spec)

    def _result(self, part: Any, arguments: Arguments, before: Sequence[Any]) -> Any:
        if isinstance(part, Operand):
            return arguments.operands[part.index]
        if isinstance(part, ConstantPart):
            return part.value
        engine, mesh = self._engine, arguments.mesh
        if isinstance(part, ObjectPart):
            return opaque_handle(mesh, engine._new_ref(None, mesh._stream_slots))
        base: Ref | None = None
        if part.aliased is not None:
            among = arguments.operands if part.aliased >= 0 else before
            base = among[part.aliased if part.aliased >= 0 else ~part.aliased]._ref
        kind = Kind(
            torch.Size(part.shape),
            part.strides,
            part.offset,
            part.dtype,
            part.device,
            torch.strided,
            lazy=0,
        )
        return wrap(engine.metas.of_kind(mesh, kind), engine._new_ref(base, mesh._stream_slots))

    def _invalidate_known_scalars(self, arguments: Arguments) -> None:
        """Invalidate the scalars that the program knows, because the function may write to them."""
        for one in arguments.operands:
            if type(one) is Tensor and one._known_scalar is not None:
                one._known_scalar.family[0] = False


def code_of(target: Target) -> FunctionCode:
    """Return the serialized form of a function.

    Raises:
        ValueError: A string is not a path to a function.
        TypeError: The function can be neither imported nor pickled.
    """
    if isinstance(target, str):
        if "." not in target:
            raise ValueError(
                f"{target!r} is not a path to a function: use the form 'package.module.function'"
            )
        return FunctionCode(target, None)
    module, path = getattr(target, "__module__", None), getattr(target, "__qualname__", "")
    if module not in (None, "__main__") and _found(module, path, target):
        return FunctionCode(f"{module}:{path}", None)
    try:
        with no_mesh.activate():
            pickled = cloudpickle.dumps(target)
    except (TypeError, pickle.PicklingError) as error:
        raise TypeError(f"remote function {target!r} cannot be sent: {error}") from error
    return FunctionCode(path or repr(target), pickled)


def _found(module: str, path: str, target: Any) -> bool:
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found is target or getattr(found, "__remote_target__", None) is target
