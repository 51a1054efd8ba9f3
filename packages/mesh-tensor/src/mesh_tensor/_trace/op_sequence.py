"""The content of a trace: a fixed sequence of operations, sent to the processes once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mesh_tensor._engine.plan import Plan

__all__ = ["OpSequence", "TracedOp"]


@dataclass(frozen=True)
class TracedOp:
    """One operation of a trace.

    Attributes:
        plan: The index of its plan among the plans of the trace.
        operands: The numbers of its operands. Each value of a trace has a unique number and is
            computed once.
        numbers: The floats among its arguments.
        given: Additional data: a constant that was sent, or a pickled argument.
        results: The numbers of its results.
    """

    plan: int
    operands: tuple[int, ...]
    numbers: tuple[float, ...]
    given: Any
    results: tuple[int, ...]


@dataclass(frozen=True)
class OpSequence:
    """A trace without its arguments.

    Attributes:
        plans: The plans of its operations.
        ops: The operations, in order.
        inputs: The numbers of the values that exist before: arguments, and other values that the
            function uses.
        results: The numbers of the values that are kept.
        values: The total number of values.
    """

    plans: tuple[Plan, ...]
    ops: tuple[TracedOp, ...]
    inputs: tuple[int, ...]
    results: tuple[int, ...]
    values: int
