"""What a function issues while a trace of it is recorded.

The function runs as it always does. Beside that each operation is noted with numbers for its
values in place of slots, which are used again and again.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from mesh_tensor._engine.call_site import Place, place_here, words_of
from mesh_tensor._errors import TraceError
from mesh_tensor._trace.op_sequence import OpSequence, TracedOp

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mesh_tensor._engine.engine import Engine
    from mesh_tensor._engine.plan import Plan
    from mesh_tensor._tensor.tensor import Tensor

__all__ = ["Input", "Recorder"]

#: Kinds of plans whose one float stands for something that the batch brings.
_BRINGING = ("remote", "adopt", "lend")
#: Kinds by which streams borrow from each other.
_BORROWING = ("give", "take", "return", "wait", "give_up")


class Input:
    """A value that was there before the function began.

    Attributes:
        number: Its number in the trace.
        tensor: The tensor, or what else is held by slot.
        meta: What the tensor was like.
        base: The slot whose storage it had.
    """

    def __init__(self, number: int, tensor: Any, base: int) -> None:
        self.number = number
        self.tensor = tensor
        self.meta = getattr(tensor, "_meta", None)
        self.base = base


class Recorder:
    """Notes the operations of one thread.

    Args:
        engine: Of which engine.
        arguments: The tensors that the function is called with.
    """

    def __init__(self, engine: Engine, arguments: Iterable[Tensor]) -> None:
        self._engine = engine
        self._thread = threading.get_ident()
        #: By slot, the number of the value that is in it now.
        self._numbers: dict[int, int] = {}
        self._count = 0
        self.inputs: dict[int, Input] = {}
        self._plans: dict[int, int] = {}
        self._ops: list[TracedOp] = []
        #: Where each operation was issued.
        self.places: list[Place] = []
        #: The slots whose storage was written to.
        self._written: set[int] = set()
        #: Whether the function did something that it does but once.
        self.is_first_of_its_kind = False
        for one in arguments:
            if one._ref.slot not in self._numbers:
                self._input(one._ref.slot, one)

    def note(self, words: tuple[int, ...], operands: Sequence[Any]) -> None:
        """Notes an operation that is about to be issued.

        Raises:
            TraceError: It cannot be in a trace.
        """
        if threading.get_ident() != self._thread:
            return
        plan = self._engine.plans[words[0]]
        if plan.lane or plan.kind in _BORROWING:
            raise TraceError(
                "a trace is of the default stream alone, and this is of another one, or borrows: "
                "trace the parts between"
            )
        given: Any = None
        numbers: tuple[float, ...] = ()
        stream = self._engine.stream
        taken: Sequence[int] = words[1 : 1 + plan.operands]
        if plan.kind == "put":
            given, taken = stream.value_at(words[1]), ()
        elif plan.kind in _BRINGING:
            given = self._brought(plan, words[1 + plan.operands])
        elif plan.numbers:
            places = words[1 + plan.operands : 1 + plan.operands + plan.numbers]
            numbers = tuple(map(stream.number_at, places))
        values = tuple(
            self._numbers[slot] if slot in self._numbers else self._input(slot, operand)
            for slot, operand in zip(taken, operands, strict=False)
        )
        for place in plan.mutated:
            self._written.add(self._engine.bases[taken[place]])
        results = tuple(map(self._new, words[1 + plan.operands + plan.numbers :]))
        number = self._plans.setdefault(plan.number, len(self._plans))
        self._ops.append(TracedOp(number, values, numbers, given, results))
        self.places.append(place_here())

    def freed(self, slots: Sequence[int]) -> None:
        """Hears of slots that will hold something else."""
        for slot in slots:
            number = self._numbers.get(slot)
            if number is not None and number not in self.inputs:
                del self._numbers[slot]

    def asked(self, is_once: bool = False) -> None:
        """The function waits for something that the processes say.

        Raises:
            TraceError: It will do so each time.
        """
        if threading.get_ident() != self._thread:
            return
        if not is_once:
            raise TraceError(
                "a trace is the same operations each time, and this reads a value (item, a "
                "comparison, inspect), or has a shape that depends on one: do it outside of the "
                "traced function; for optimizers that count their steps there is fused=True"
            )
        self.is_first_of_its_kind = True

    def sent(self) -> None:
        """The function sends a tensor of this process.

        Raises:
            TraceError: Always.
        """
        if threading.get_ident() == self._thread:
            raise TraceError(
                "a trace is the same operations each time, and this sends a tensor of the "
                "program, which may be another one the next time: pass it as an argument, or put "
                "it on the mesh before"
            )

    def number_of(self, tensor: Any) -> int | None:
        """Gives the number of a value that the function has made or used; none of others."""
        return self.number_of_slot(tensor._ref.slot)

    def number_of_slot(self, slot: int) -> int | None:
        """Gives the number of the value in a slot."""
        return self._numbers.get(slot)

    def is_written(self, one: Input) -> bool:
        """Whether the function has written to a value that was there before."""
        return one.base in self._written

    def left(self) -> list[int]:
        """Gives the values that the function has made and that are still held."""
        return [number for number in self._numbers.values() if number not in self.inputs]

    def maker_of(self, number: int) -> str:
        """Says where a value was made."""
        index = next(i for i, op in enumerate(self._ops) if number in op.results)
        return words_of(self.places[index])

    def body(self, results: Sequence[int]) -> OpSequence:
        """Gives the trace, of which some values are kept."""
        plans = tuple(self._engine.plans[number] for number in self._plans)
        return OpSequence(plans, tuple(self._ops), tuple(self.inputs), tuple(results), self._count)

    def _brought(self, plan: Plan, place: int) -> Any:
        if plan.kind == "lend":
            raise TraceError(
                f"a trace is for tensors, and {plan.name} is a method of an actor: call it outside "
                "of the traced function, or have it be a remote function"
            )
        if plan.kind == "adopt":
            # The first call of its kind: those that follow are of another one.
            self.is_first_of_its_kind = True
            return None
        return self._engine.stream.value_at(place)

    def _input(self, slot: int, tensor: Any) -> int:
        number = self._new(slot)
        self.inputs[number] = Input(number, tensor, self._engine.bases[slot])
        return number

    def _new(self, slot: int) -> int:
        number = self._numbers[slot] = self._count
        self._count += 1
        return number
