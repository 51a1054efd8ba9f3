"""Finds the values that depend on a failed operation in the instructions issued since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mesh_tensor._instructions.instruction_stream import FREE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mesh_tensor._instructions.compiled_op import CompiledOp

__all__ = ["mark_dependants"]


def mark_dependants(
    number: int,
    first: int,
    instructions: Iterable[int],
    compiled_ops: Mapping[int, CompiledOp],
    bases: Sequence[int],
) -> set[int]:
    """Return the slots whose values are lost after all of the instructions have been executed.

    Args:
        number: The number of the failed operation.
        first: The number of the first operation in the instructions.
        instructions: All instructions that were sent since then.
        compiled_ops: The compiled ops, by number.
        bases: For each slot, the slot that owns its storage now.
    """
    lost: set[int] = set()
    code = list(instructions)
    at = 0
    while at < len(code):
        if code[at] == FREE:
            lost.discard(code[at + 1])
            at += 2
            continue
        compiled_op = compiled_ops[code[at]]
        operands = code[at + 1 : at + 1 + compiled_op.operands]
        results = code[
            at + 1 + compiled_op.operands + compiled_op.numbers : at + compiled_op.instruction_len
        ]
        if compiled_op.kind == "free":
            lost.difference_update(operands)
        elif first == number or (
            first > number and compiled_op.kind != "put" and lost & set(operands)
        ):
            lost.update(results)
            written = {bases[operands[place]] for place in compiled_op.mutated}
            lost.update(slot for slot, base in enumerate(bases) if base in written)
        else:
            lost.difference_update(results)
        at += compiled_op.instruction_len
        first += 1
    return lost
