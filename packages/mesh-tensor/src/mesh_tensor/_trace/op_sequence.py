"""What a trace is: operations in a fixed order, as they are sent to the processes once."""

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
        plan: Which of the trace's plans.
        operands: The numbers of the values that it takes. Each value of a trace has a number of
            its own, and is made but once.
        numbers: The floats among its arguments.
        given: What it brings besides, as a constant that was sent or a pickled argument.
        results: The numbers of the values that it gives.
    """

    plan: int
    operands: tuple[int, ...]
    numbers: tuple[float, ...]
    given: Any
    results: tuple[int, ...]


@dataclass(frozen=True)
class OpSequence:
    """A trace without what it is called with.

    Attributes:
        plans: What its operations are.
        ops: The operations, in order.
        inputs: The numbers of the values that are there before: arguments, and what the function
            uses besides.
        results: The numbers of the values that are kept.
        values: How many values there are in all.
    """

    plans: tuple[Plan, ...]
    ops: tuple[TracedOp, ...]
    inputs: tuple[int, ...]
    results: tuple[int, ...]
    values: int
