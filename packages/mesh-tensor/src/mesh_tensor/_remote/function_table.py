"""The remote functions of one engine: sent to the processes once, called by number."""

from __future__ import annotations

import itertools
import pickle
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import cloudpickle  # type: ignore[import-untyped,unused-ignore]
import torch
from torch.utils import _pytree as pytree

from mesh_tensor._engine.call_site import place_here, words_of
from mesh_tensor._engine.plan import Operand
from mesh_tensor._errors import OpFailed, RanksDisagree, TensorError
from mesh_tensor._mesh.activation import no_mesh
from mesh_tensor._remote.call_protocol import (
    ConstantPart,
    FunctionCode,
    ObjectPart,
    Pattern,
    RemoteCall,
    TensorPart,
    Trial,
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
    """What the processes of an engine know of the program's functions.

    Args:
        engine: Whose.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: By the function, the number of the plan that brought it.
        self.functions: dict[Any, int] = {}
        self._plans: dict[Any, Any] = {}
        self._tokens = itertools.count(1)
        self._loans: Any = None
        #: What the endpoints of actors give, by their rules and the kinds of arguments.
        self.actor_patterns: dict[Any, Pattern] = {}

    def number_of(self, target: Target, code: FunctionCode) -> int:
        """Gives the number of a function; it is sent before what calls it."""
        number = self.functions.get(target)
        if number is None:
            engine = self._engine
            plan = engine._define(
                None, engine.mesh(engine._all), None, kind="function", name=code.name, detail=code
            )
            number = self.functions[target] = plan.number
        return number

    def issue(
        self, number: int, name: str, arguments: Arguments, blob: bytes, pattern: Pattern
    ) -> Any:
        """Calls a function of which it is known what it gives; returns at once."""
        plan = self._plan("remote", number, name, arguments, pattern)
        return self._issue(plan, arguments, pattern, blob)

    def attempt(
        self, number: int, name: str, arguments: Arguments, blob: bytes
    ) -> tuple[Pattern, Any]:
        """Calls a function to see what it gives; waits for that.

        Raises:
            OpFailed: It failed on some process, or what it depends on has.
            RanksDisagree: The processes give different things.
        """
        engine = self._engine
        token = next(self._tokens) & 0x7FFFFFFF
        workers = engine._workers._with_region(arguments.mesh._region)
        with engine.stream.lock:
            # What it will write to is not known.
            engine.read(arguments.operands, is_once=True)
            attempt = engine.lanes.endpoint("attempt", arguments.mesh._lane, workers)
            answer = attempt.call(number, blob, arguments.slots, token)
        try:
            pattern = self._agreed(name, arguments, list(answer.get().values()))
        except TensorError:
            workers.drop_held.broadcast(token)
            raise
        plan = self._plan("adopt", number, name, arguments, pattern)
        return pattern, self._issue(plan, arguments, pattern, None, token)

    def loans(self, procs: ProcMesh, actor: type[Any]) -> Any:
        """Gives the actors that hear of calls which are not served."""
        if self._loans is None:
            self._loans = procs.spawn("mesh_tensor_loans", actor)
        return self._loans

    def lend(
        self, name: str, arguments: Arguments, order: object, pattern: Pattern, key: Any
    ) -> Any:
        """Lends tensors to actors for one call; gives what that returns."""
        plan = self._plan("lend", key, name, arguments, pattern)
        return self._issue(plan, arguments, pattern, order)

    def invoke(
        self, number: int, arguments: Arguments, blob: bytes, verb: str, mesh: DeviceMesh
    ) -> Any:
        """Calls a function for its value, by one of the verbs of endpoints."""
        engine = self._engine
        self._forget_shadows(arguments)
        workers = engine._workers._with_region(mesh._region)
        with engine.stream.lock:
            engine.read(arguments.operands)
            invoke = engine.lanes.endpoint("invoke", arguments.mesh._lane, workers)
            return getattr(invoke, verb)(number, blob, arguments.slots)

    def _agreed(self, name: str, arguments: Arguments, trials: Sequence[Trial]) -> Pattern:
        if any(trial.is_poisoned for trial in trials):
            for one in arguments.operands:
                self._engine.check(one._ref)
        ranks = arguments.mesh._region.ranks()
        for rank, trial in zip(ranks, trials, strict=True):
            if trial.error is not None:
                what = f"{type(trial.error).__name__}: {trial.error}"
                error = OpFailed(name, rank, words_of(place_here()), what)
                raise error from trial.error
        first = trials[0].pattern
        assert first is not None
        for rank, trial in zip(ranks, trials, strict=True):
            if trial.pattern != first:
                raise RanksDisagree(
                    f"{name} gives something else on rank {rank} than on rank {ranks[0]}: its "
                    "results must be alike, and what is not a tensor the same"
                )
        return first

    def _plan(
        self, kind: str, number: Any, name: str, arguments: Arguments, pattern: Pattern
    ) -> Any:
        kept = tuple(
            (place, part)
            for place, part in enumerate(pattern.parts)
            if isinstance(part, (TensorPart, ObjectPart))
        )
        operands = len(arguments.operands)
        returned = tuple(
            (place, part.index)
            for place, part in enumerate(pattern.parts)
            if isinstance(part, Operand)
        )
        # An attempt has been compared already, and its values may be of any type.
        constants = () if kind == "adopt" else pattern.constants
        mesh, count = arguments.mesh, len(pattern.parts)
        objects = tuple(
            place for place, one in enumerate(arguments.operands) if type(one) is not Tensor
        )
        call = RemoteCall(number, kept, returned, constants, objects, count, pattern.is_checked)
        # Values of different types can be equal.
        types = tuple(type(value) for _, value in constants)
        key = (kind, mesh, operands, call, types, pattern.mutated)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._engine._define(
                None,
                mesh,
                None,
                kind=kind,
                name=name,
                operands=operands,
                numbers=1,
                results=tuple(place for place, _ in kept),
                mutated=pattern.mutated,
                detail=call,
            )
        return plan

    def _issue(
        self,
        plan: Any,
        arguments: Arguments,
        pattern: Pattern,
        given: object | None,
        token: int = 0,
    ) -> Any:
        engine = self._engine
        stream, slots = engine.stream, arguments.slots
        self._forget_shadows(arguments)
        for place in pattern.mutated:
            if type(arguments.operands[place]) is Tensor:
                torch.autograd.graph.increment_version(arguments.operands[place])
        leaves: list[Any] = []
        results: list[int] = []
        with stream.lock:
            for part in pattern.parts:
                leaf = self._result(part, arguments, leaves)
                leaves.append(leaf)
                if isinstance(part, (TensorPart, ObjectPart)):
                    results.append(leaf._ref.slot)
            if engine.is_watchful:
                engine.watch(plan, arguments.operands, slots, results)
            word = token if given is None else stream.add_value(given)
            stream.issue((plan.number, *slots, word, *results), arguments.operands)
        return pytree.tree_unflatten(leaves, pattern.spec)

    def _result(self, part: Any, arguments: Arguments, before: Sequence[Any]) -> Any:
        if isinstance(part, Operand):
            return arguments.operands[part.index]
        if isinstance(part, ConstantPart):
            return part.value
        engine, mesh = self._engine, arguments.mesh
        if isinstance(part, ObjectPart):
            return opaque_handle(mesh, engine._new_ref(None, mesh._lane))
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
        return wrap(engine.metas.of_kind(mesh, kind), engine._new_ref(base, mesh._lane))

    def _forget_shadows(self, arguments: Arguments) -> None:
        """The function may write to scalars that the program knows."""
        for one in arguments.operands:
            if type(one) is Tensor and one._known_scalar is not None:
                one._known_scalar.family[0] = False


def code_of(target: Target) -> FunctionCode:
    """Says how a function travels.

    Raises:
        ValueError: It is no path.
        TypeError: It can be neither imported nor pickled.
    """
    if isinstance(target, str):
        if "." not in target:
            raise ValueError(
                f"{target!r} is no path to a function: write it as 'package.module.function'"
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
