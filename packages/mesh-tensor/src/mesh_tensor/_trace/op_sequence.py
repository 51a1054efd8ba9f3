"""The content of a trace: a fixed sequence of operations, sent to the processes once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from mesh_tensor._instructions.compiled_op import CompiledOp

__all__ = ["OpSequence", "TracedOp", "encode_op", "last_uses"]


@dataclass(frozen=True)
class TracedOp:
    """One operation of a trace.

    Attributes:
        compiled_op: The index of its compiled op among the compiled ops of the trace.
        operands: The numbers of its operands. Each value of a trace has a unique number and is
            computed once.
        numbers: The floats among its arguments.
        given: Additional data: a constant that was sent, or a pickled argument.
        results: The numbers of its results.
    """

    compiled_op: int
    operands: tuple[int, ...]
    numbers: tuple[float, ...]
    given: Any
    results: tuple[int, ...]


@dataclass(frozen=True)
class OpSequence:
    """A trace without its arguments.

    Attributes:
        compiled_ops: The compiled ops of its operations.
        ops: The operations, in order.
        inputs: The numbers of the values that exist before: arguments, and other values that the
            function uses.
        results: The numbers of the values that are kept.
        values: The total number of values.
    """

    compiled_ops: tuple[CompiledOp, ...]
    ops: tuple[TracedOp, ...]
    inputs: tuple[int, ...]
    results: tuple[int, ...]
    values: int


def encode_op(
    compiled_op: CompiledOp, op: TracedOp, given: list[Any], numbers: array[float]
) -> list[int]:
    """Return the instruction of an operation, and append its data to `given` and `numbers`."""
    instruction = [compiled_op.opcode]
    if compiled_op.kind == "put":
        instruction.append(len(given))
        given.append(op.given)
    else:
        instruction += op.operands
        if op.given is not None:
            instruction.append(len(given))
            given.append(op.given)
        for one in op.numbers:
            instruction.append(len(numbers))
            numbers.append(one)
    return [*instruction, *op.results]


def last_uses(ops: Sequence[TracedOp], body: OpSequence) -> list[list[int]]:
    """Return for each operation the values that no later operation needs."""
    needed = {*body.results, *body.inputs}
    dying: list[list[int]] = []
    for op in reversed(ops):
        used = dict.fromkeys((*op.operands, *op.results))
        dying.append([one for one in used if one not in needed])
        needed.update(used)
    return dying[::-1]
