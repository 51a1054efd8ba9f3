"""Results that only the processes can determine: issued, queried, and checked for agreement.

This applies to each call of operations whose results depend on values (`nonzero`, `unique`,
`equal`), and to the first call for each kind of operands if PyTorch has no shape rule for an
operation, or an incorrect one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from mesh_tensor._errors import RanksDisagree, UnsupportedOp
from mesh_tensor._instructions.results import NewTensor
from mesh_tensor._tensor.meta import kind_of
from mesh_tensor._tensor.tensor import set_meta, wrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_tensor._engine.engine import Engine
    from mesh_tensor._instructions.compiled_op_cache import CacheEntry
    from mesh_tensor._instructions.results import DataDependentResults
    from mesh_tensor._tensor.meta import Kind
    from mesh_tensor._tensor.tensor import Tensor

__all__ = ["TensorDescription", "describe", "issue_and_fetch"]


class TensorDescription(NamedTuple):
    """The description of a tensor by a process.

    Attributes:
        kind: Its shape and other metadata.
        aliased: The index of the operand whose storage it shares, if any.
    """

    kind: Kind
    aliased: int | None


def describe(value: Any, operands: Sequence[Any]) -> Any:
    """Describe a value; called in the process.

    A number describes itself, a sparse or quantized tensor is described by its layout, and any
    other value by its type.
    """
    if not isinstance(value, torch.Tensor):
        return value if isinstance(value, (bool, int, float, complex, type(None))) else type(value)
    if value.layout is not torch.strided or value.is_quantized:
        return value.layout
    storage = value.untyped_storage()._cdata
    places = [
        place
        for place, one in enumerate(operands)
        if isinstance(one, torch.Tensor) and one.untyped_storage()._cdata == storage
    ]
    return TensorDescription(kind_of(value), places[0] if places else None)


def issue_and_fetch(
    engine: Engine,
    entry: CacheEntry,
    operands: Sequence[Tensor],
    numbers: Sequence[float],
) -> Any:
    """Issue an operation and wait for the processes to describe its results.

    Raises:
        OpFailed: The operation or something that it depends on has failed.
        RanksDisagree: The results differ between processes.
        UnsupportedOp: A result cannot be a distributed tensor.
    """
    expected: DataDependentResults = entry.parts
    compiled_op = engine.compiled_ops[entry.opcode]
    mesh = operands[0]._meta.mesh
    slots = [one._ref.slot for one in operands]
    with engine.stream.lock:
        refs = [engine._new_ref(None, mesh._stream_slots) for _ in compiled_op.results]
        news = [one.slot for one in refs]
        if engine.needs_operand_checks:
            engine.check_operands(entry, operands, slots, news)
        places = engine.stream.add_numbers(numbers)
        engine.stream.issue((compiled_op.opcode, *slots, *places, *news), operands)
        engine.stream.flush_for_reply(is_once=expected.is_learned)
        wanted = [*news, *(slots[place] for place in expected.mutated)]
        describe = engine.stream_table.endpoint("describe", mesh._stream_slots)
        answer = describe.call(wanted, slots, mesh._encoded)
    answers = list(answer.get().values())
    for ref in [*refs, *(operands[place]._ref for place in expected.mutated)]:
        engine.check(ref)
    described = _agreed(compiled_op.name, mesh, [answers[rank] for rank in mesh._region.ranks()])
    made: list[Any] = []
    parts: list[Any] = []
    for one, ref in zip(described, refs, strict=False):
        if isinstance(one, (torch.layout, type)):
            raise UnsupportedOp(f"{compiled_op.name} returns a {one}: call it in a remote function")
        if not isinstance(one, TensorDescription):
            made.append(one)
            parts.append(None)
            continue
        meta = engine.metas.of_kind(mesh, one.kind)
        if one.aliased is not None:
            engine.rebase(ref, operands[one.aliased]._ref)
        made.append(wrap(meta, ref))
        parts.append(NewTensor(meta, one.aliased))
    for one, place in zip(described[len(refs) :], expected.mutated, strict=True):
        set_meta(operands[place], engine.metas.of_kind(mesh, one.kind))
    if expected.is_learned and None not in parts and not expected.mutated:
        entry.learn(_returned(expected, parts, None))
    return _returned(expected, made, operands)


def _returned(
    expected: DataDependentResults, parts: Sequence[Any], operands: Sequence[Any] | None
) -> Any:
    found = [
        parts[one] if isinstance(one, int) else operands[one.index] if operands else one
        for one in expected.returned
    ]
    if expected.is_single:
        return found[0]
    return tuple(found) if found else None


def _agreed(name: str, mesh: Any, answers: Sequence[Any]) -> Any:
    first = answers[0]
    for place, one in enumerate(answers):
        if one != first and not _is_nan(one, first):
            raise RanksDisagree(
                f"the result of {name} differs between the processes of {mesh}: {_summary(first)}"
                f" on the first process, {_summary(one)} on number {place}: make their values equal"
                " (reduce), pad to one shape, or do it in a remote function"
            )
    return first


def _is_nan(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return all(a == b or (a != a and b != b) for a, b in zip(one, other, strict=True))


def _summary(described: Sequence[Any]) -> str:
    return ", ".join(
        f"a tensor of shape {tuple(one.kind.shape)}"
        if isinstance(one, TensorDescription)
        else repr(one)
        for one in described
    )
