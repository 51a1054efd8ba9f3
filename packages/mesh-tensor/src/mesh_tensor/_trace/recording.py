"""Recordings of a function: creating them, and replaying them with other arguments."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from mesh_core import Region
from mesh_tensor._errors import TraceError
from mesh_tensor._instructions.call_site import TraceCallSite, format_call_site
from mesh_tensor._mesh.activation import backward_in_this_thread
from mesh_tensor._tensor.tensor import Tensor, wrap
from mesh_tensor._trace.gradients import Gradients
from mesh_tensor._trace.guards import Guards
from mesh_tensor._trace.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mesh_tensor._engine.engine import Engine
    from mesh_tensor._tensor.meta import Meta
    from mesh_tensor._trace.gradients import Gradient
    from mesh_tensor._trace.recorder import Input

__all__ = ["Recorded", "Recording", "record"]

#: The source of an input: an argument, the gradient of a parameter, or a captured tensor.
_LEAF, _GRADIENT, _CAPTURED = range(3)
#: The source of a return value: a result of the trace, one of its inputs, or a constant.
_RESULT, _INPUT, _CONSTANT = range(3)


@dataclass(frozen=True)
class Recorded:
    """The outcome of recording a function.

    Attributes:
        result: The return value of the function.
        recording: The recording, if it can be replayed.
        unusable_reason: The reason why it cannot be replayed.
    """

    result: Any
    recording: Recording | None
    unusable_reason: str = ""


def record(
    engine: Engine, function: Callable[..., Any], leaves: Sequence[Any], spec: Any
) -> Recorded:
    """Call a function and record its operations.

    Raises:
        TraceError: It does something that a trace cannot contain.
    """
    tensors = [one for one in leaves if type(one) is Tensor]
    guards = Guards(function, (one for one in leaves if type(one) is not Tensor))
    before = guards.state()
    parameters = (one for one in tensors if one.requires_grad)
    gradients = Gradients([*guards.parameters(), *parameters])
    recorder = Recorder(engine, tensors)
    engine.stream.recorder = recorder
    try:
        args, kwargs = pytree.tree_unflatten(list(leaves), spec)
        with backward_in_this_thread():
            result = function(*args, **kwargs)
        changes = gradients.changes(recorder)
        kept = _kept(recorder, changes, result)
        unusable_reason = _escape_reason(engine, recorder, kept)
        _check_shapes(recorder)
    finally:
        engine.stream.recorder = None
    if recorder.is_first_of_its_kind:
        unusable_reason = "each call uses an operation for the first time"
    elif guards.state() != before:
        unusable_reason = f"it changes {guards.changed(before)} itself"
    if unusable_reason:
        return Recorded(result, None, unusable_reason)
    recording = Recording(engine, recorder, changes, kept, leaves, result)
    recording.watch(guards, before)
    return Recorded(result, recording)


class Recording:
    """Operations to replay, with their inputs and outputs.

    Args:
        engine: The engine of the operations.
        recorder: The recorder with the operations.
        gradients: The changes of gradients.
        kept: The values that outlive the call, by number.
        leaves: The leaves of the arguments.
        result: The return value.
    """

    def __init__(
        self,
        engine: Engine,
        recorder: Recorder,
        gradients: Sequence[Gradient],
        kept: dict[int, Tensor],
        leaves: Sequence[Any],
        result: Any,
    ) -> None:
        self._engine = engine
        self._gradients = gradients
        inputs = list(recorder.inputs.values())
        self._sources = [_source_of(one, leaves, gradients) for one in inputs]
        self._captured = [
            (one.tensor, one.meta)
            for one, (kind, _) in zip(inputs, self._sources, strict=True)
            if kind == _CAPTURED and one.meta is not None
        ]
        self._mutated = tuple(at for at, one in enumerate(inputs) if recorder.is_written(one))
        #: For each result: number, metadata, and the value whose storage it shares.
        self._results = _results(kept, inputs)
        places = {number: at for at, (number, _, _) in enumerate(self._results)}
        self._replaced = [
            (one.parameter, places.get(-1 if one.number is None else one.number), one)
            for one in gradients
            if one.is_replaced
        ]
        leaves_out, self._spec = pytree.tree_flatten(result)
        self._returned = [_returned(one, recorder, inputs, places) for one in leaves_out]
        self._call_sites = recorder.call_sites
        self.body = recorder.body(list(places))
        self._entry = _defined(engine, self.body, self._mutated)

    def watch(self, guards: Guards, state: tuple[Any, ...]) -> None:
        """Make the recording valid only as long as the state of the guards does not change."""
        self._guards, self._state = guards, state

    def holds(self) -> bool:
        """Return whether the function would perform the same operations now."""
        return (
            all(tensor._meta is meta for tensor, meta in self._captured)
            and all(one.holds for one in self._gradients)
            and self._guards.state() == self._state
        )

    def changed(self) -> str:
        """Return the name of the state that has changed."""
        return self._guards.changed(self._state)

    def replay(self, leaves: Sequence[Any]) -> Any:
        """Replay the operations; return what the function would return.

        Raises:
            MeshError: The processes have exited.
        """
        engine, entry = self._engine, self._entry
        operands: list[Any] = [
            payload
            if kind == _CAPTURED
            else leaves[payload]
            if kind == _LEAF
            else payload.parameter.grad
            for kind, payload in self._sources
        ]
        for parameter, _, gradient in self._replaced:
            if gradient.meta is None:
                # Release the memory before the replay, so that the replay can use it.
                parameter.grad = None
        made: list[Tensor] = []
        with engine.stream.lock:
            for _, meta, base in self._results:
                ref = engine._new_ref(_base_of(base, operands, made), meta.mesh._stream_slots)
                made.append(wrap(meta, ref))
            slots = [one._ref.slot for one in operands]
            results = [one._ref.slot for one in made]
            if engine.needs_operand_checks:
                engine.check_operands(entry, operands, slots, results)
            instruction = (entry.opcode, *slots, *results)
            engine.stream.issue(instruction, operands, TraceCallSite.here(self._call_sites))
        for at in self._mutated:
            _note_written(operands[at])
        for parameter, place, _ in self._replaced:
            parameter.grad = None if place is None else made[place]
        out = [
            made[payload] if kind == _RESULT else operands[payload] if kind == _INPUT else payload
            for kind, payload in self._returned
        ]
        return pytree.tree_unflatten(out, self._spec)

    def difference(self, other: Recording) -> str:
        """Describe the first difference from another recording; empty if there is none."""
        both = zip(self._signature(), other._signature(), strict=False)
        at = next((at for at, (one, two) in enumerate(both) if one != two), None)
        if at is None and len(self.body.ops) == len(other.body.ops):
            return ""
        at = min(len(self.body.ops), len(other.body.ops)) if at is None else at
        here = (
            format_call_site(self._call_sites[at])
            if at < len(self._call_sites)
            else "  (it has ended before)"
        )
        return f"operation {at} differs, issued here:\n{here}"

    def _signature(self) -> list[Any]:
        compiled_ops = [(one.name, repr((one.args, one.kwargs))) for one in self.body.compiled_ops]
        return [
            (compiled_ops[op.compiled_op], op.operands, op.numbers, op.results, repr(op.given))
            for op in self.body.ops
        ]


def _kept(recorder: Recorder, gradients: Sequence[Gradient], result: Any) -> dict[int, Tensor]:
    """Return the values that the function has created for its caller, by number.

    Raises:
        TraceError: A returned tensor requires gradients through the trace.
    """
    kept: dict[int, Tensor] = {}
    grads = [one.parameter.grad for one in gradients if one.is_replaced]
    for one in [*pytree.tree_leaves(result), *grads]:
        if type(one) is not Tensor:
            continue
        number = recorder.number_of(one)
        if number is None or number in recorder.inputs:
            continue
        if one.requires_grad:
            raise TraceError(
                "a traced function returns a tensor that needs gradients, but traces do not"
                " propagate gradients: call backward() in it, detach the result, or decorate it"
                " with torch.no_grad(); the tensor is created here:\n"
                f"{recorder.producer_of(number)}"
            )
        kept[number] = one
    return kept


def _escape_reason(engine: Engine, recorder: Recorder, kept: dict[int, Tensor]) -> str:
    """Describe another value that outlives the call, which a replay would not create again."""
    # A kept value keeps alive the value whose storage it shares.
    bases = {recorder.number_of_slot(one._ref.base.slot) for one in kept.values() if one._ref.base}
    for collect in (False, True):
        if collect:
            gc.collect()
        # The flush processes pending frees, so that the recorder knows which values are alive.
        engine.stream.flush()
        left = [
            number
            for number in recorder.live_values()
            if number not in kept and number not in bases
        ]
        if not left:
            return ""
    return (
        "it creates a tensor that outlives the call without being returned,"
        f" here:\n{recorder.producer_of(left[0])}"
    )


def _check_shapes(recorder: Recorder) -> None:
    """Check that all inputs still have their original shape.

    Raises:
        TraceError: The shape of an input has changed.
    """
    for one in recorder.inputs.values():
        if one.meta is not None and one.tensor._meta is not one.meta:
            raise TraceError(
                "a traced function changes the shape of an existing tensor from"
                f" {tuple(one.meta.shape)} to {tuple(one.tensor.shape)}: return a new tensor"
                " instead"
            )


def _source_of(one: Input, leaves: Sequence[Any], gradients: Sequence[Gradient]) -> tuple[int, Any]:
    for index, leaf in enumerate(leaves):
        if type(leaf) is Tensor and leaf._ref is one.tensor._ref:
            return _LEAF, index
    for gradient in gradients:
        if gradient.before is not None and gradient.before is one.tensor:
            return _GRADIENT, gradient
    return _CAPTURED, one.tensor


def _results(
    kept: dict[int, Tensor], inputs: Sequence[Input]
) -> list[tuple[int, Meta, tuple[bool, int] | None]]:
    """Return the results, ordered so that the owner of a storage precedes values that share it."""
    by_base = {one.base: (True, at) for at, one in reversed(list(enumerate(inputs)))}
    found: list[tuple[int, Meta, tuple[bool, int] | None]] = []
    for at, number in enumerate(sorted(kept)):
        ref = kept[number]._ref
        root = ref.base or ref
        found.append((number, kept[number]._meta, by_base.get(root.slot)))
        by_base.setdefault(root.slot, (False, at))
    return found


def _base_of(base: tuple[bool, int] | None, operands: Sequence[Any], made: Sequence[Tensor]) -> Any:
    if base is None:
        return None
    is_operand, at = base
    return operands[at]._ref if is_operand else made[at]._ref


def _returned(
    one: Any, recorder: Recorder, inputs: Sequence[Input], places: dict[int, int]
) -> tuple[int, Any]:
    if type(one) is not Tensor:
        return _CONSTANT, one
    number = recorder.number_of(one)
    if number is None:
        return _CONSTANT, one
    if number in places:
        return _RESULT, places[number]
    return _INPUT, [two.number for two in inputs].index(number)


def _defined(engine: Engine, body: Any, mutated: tuple[int, ...]) -> Any:
    """Define the compiled op that replays the trace in the processes."""
    regions = {compiled_op.ranks for compiled_op in body.compiled_ops}
    one = Region.decode(regions.pop()) if len(regions) == 1 else engine._all
    return engine._define(
        None,
        engine.mesh(one),
        None,
        kind="replay",
        name="a trace",
        operands=len(body.inputs),
        results=(None,) * len(body.results),
        mutated=mutated,
        detail=body,
    )


def _note_written(tensor: Any) -> None:
    if type(tensor) is Tensor:
        torch.autograd.graph.increment_version(tensor)
        if tensor._known_scalar is not None:
            tensor._known_scalar.family[0] = False
