"""What an operation is, said once: the processes keep it under a number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Forget", "Number", "Operand", "Plan"]


@dataclass(frozen=True)
class Operand:
    """Stands in the arguments for a value that the words name."""

    index: int


@dataclass(frozen=True)
class Number:
    """Stands in the arguments for a float that comes with each operation."""

    index: int


@dataclass(frozen=True)
class Forget:
    """Comes among the plans: some that no words name any more.

    Attributes:
        numbers: Which.
    """

    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """An operation without its operands, as it is sent.

    Its words are its number, the slots of the operands in order, the places of its floats among
    those of the batch, and the slots of the results.

    Attributes:
        number: What it is called in the words.
        kind: Which part of the interpreter does it; see `_steps`.
        name: What is done: of `torch`'s operations the name, as `aten.add.Tensor`.
        ranks: Which processes do it; the others pass over its words.
        args: The arguments, in which `Operand` stands for values and `Number` for floats.
        kwargs: Those with names.
        operands: How many values it takes.
        numbers: How many floats it takes.
        results: Which parts of what it returns are kept, each by the path to it; None
            stands for what was returned itself.
        mutated: Which operands it writes to: they are lost when it fails.
        detail: What its kind needs besides.
        lane: Of which stream of the engine it is, by number; 0 is that of programs without any.
    """

    number: int
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
    lane: int = 0

    @property
    def words(self) -> int:
        """How many words one operation has."""
        return 1 + self.operands + self.numbers + len(self.results)
