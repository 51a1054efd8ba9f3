"""The description of an operation, which is sent once and then identified by its opcode."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["CompiledOp", "Eviction", "Number", "Operand"]


@dataclass(frozen=True)
class Operand:
    """A placeholder in the arguments for a value whose slot is in the instructions."""

    index: int


@dataclass(frozen=True)
class Number:
    """A placeholder in the arguments for a float that is sent with each operation."""

    index: int


@dataclass(frozen=True)
class Eviction:
    """Removes compiled ops that no instruction uses any more.

    Attributes:
        opcodes: The opcodes of these compiled ops.
    """

    opcodes: tuple[int, ...]


@dataclass(frozen=True)
class CompiledOp:
    """A compiled op as it is sent: an operation without its operands.

    An instruction consists of these integers: the opcode, the slots of the operands in order, the
    positions of its floats in the batch, and the slots of the results.

    Attributes:
        opcode: The number of the compiled op in the instruction stream.
        kind: The part of the interpreter that executes it; see `KINDS` in
            `_worker.instruction_set`.
        name: The name of the operation; for PyTorch operations the full name, such as
            `aten.add.Tensor`.
        ranks: The processes that execute it. Other processes skip its instructions.
        args: The positional arguments, with `Operand` for values and `Number` for floats.
        kwargs: The keyword arguments.
        operands: The number of operands.
        numbers: The number of floats.
        results: The path of each result in the return value; None is the return value itself.
        mutated: The indexes of the operands that it writes to. They are lost if it fails.
        detail: More data, depending on the kind.
        stream_number: The number of the engine's stream; 0 is the default stream.
    """

    opcode: int
    kind: str
    name: str
    ranks: bytes
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    operands: int = 0
    numbers: int = 0
    results: tuple[tuple[int, ...] | None, ...] = ()
    mutated: tuple[int, ...] = ()
    detail: Any = None
    stream_number: int = 0

    @property
    def instruction_len(self) -> int:
        """The length of one instruction, including the opcode."""
        return 1 + self.operands + self.numbers + len(self.results)
