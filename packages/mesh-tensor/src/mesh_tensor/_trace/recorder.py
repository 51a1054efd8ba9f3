"""Records the operations of a function for a trace.

The function runs normally. In addition, each operation is recorded with unique numbers for its
values instead of slots, because slots are reused.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from mesh_tensor._errors import TraceError
from mesh_tensor._instructions.call_site import CallSite, capture_call_site, format_call_site
from mesh_tensor._trace.op_sequence import OpSequence, TracedOp

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mesh_tensor._engine.engine import Engine
    from mesh_tensor._instructions.compiled_op import CompiledOp
    from mesh_tensor._tensor.tensor import Tensor

__all__ = ["Input", "Recorder"]

#: Kinds of compiled ops whose single float is the position of an object in the batch.
_WITH_PAYLOAD = ("remote", "adopt", "actor_call")
#: Kinds of compiled ops by which streams borrow from each other.
_BORROWING = ("share", "acquire", "release", "wait", "cancel")


class Input:
    """A value that existed before the function was called.

    Attributes:
        number: Its number in the trace.
        tensor: The tensor, or another object that owns a slot.
        meta: The metadata of the tensor at that time.
        base: The slot that owned its storage.
    """

    def __init__(self, number: int, tensor: Any, base: int) -> None:
        self.number = number
        self.tensor = tensor
        self.meta = getattr(tensor, "_meta", None)
        self.base = base


class Recorder:
    """Records the operations of one thread.

    Args:
        engine: The engine of the operations.
        arguments: The tensors among the arguments of the function.
    """

    def __init__(self, engine: Engine, arguments: Iterable[Tensor]) -> None:
        self._engine = engine
        self._thread = threading.get_ident()
        #: For each slot, the number of the value that it contains now.
        self._numbers: dict[int, int] = {}
        self._count = 0
        self.inputs: dict[int, Input] = {}
        self._compiled_ops: dict[int, int] = {}
        self._ops: list[TracedOp] = []
        #: The call site of each operation.
        self.call_sites: list[CallSite] = []
        #: The slots that own storage that the function has written to.
        self._written: set[int] = set()
        #: Whether the function did something that only a first call does.
        self.is_first_of_its_kind = False
        for one in arguments:
            if one._ref.slot not in self._numbers:
                self._input(one._ref.slot, one)

    def record(self, instruction: tuple[int, ...], operands: Sequence[Any]) -> None:
        """Record an operation that is about to be issued.

        Raises:
            TraceError: A trace cannot contain the operation.
        """
        if threading.get_ident() != self._thread:
            return
        compiled_op = self._engine.compiled_ops[instruction[0]]
        if compiled_op.stream_number or compiled_op.kind in _BORROWING:
            raise TraceError(
                "a trace can only use the default stream, without borrows: trace the parts in"
                " between"
            )
        given: Any = None
        numbers: tuple[float, ...] = ()
        stream = self._engine.stream
        taken: Sequence[int] = instruction[1 : 1 + compiled_op.operands]
        if compiled_op.kind == "put":
            given, taken = stream.value_at(instruction[1]), ()
        elif compiled_op.kind in _WITH_PAYLOAD:
            given = self._payload(compiled_op, instruction[1 + compiled_op.operands])
        elif compiled_op.numbers:
            places = instruction[
                1 + compiled_op.operands : 1 + compiled_op.operands + compiled_op.numbers
            ]
            numbers = tuple(map(stream.number_at, places))
        values = tuple(
            self._numbers[slot] if slot in self._numbers else self._input(slot, operand)
            for slot, operand in zip(taken, operands, strict=False)
        )
        for place in compiled_op.mutated:
            self._written.add(self._engine.bases[taken[place]])
        results = tuple(
            map(self._new, instruction[1 + compiled_op.operands + compiled_op.numbers :])
        )
        number = self._compiled_ops.setdefault(compiled_op.opcode, len(self._compiled_ops))
        self._ops.append(TracedOp(number, values, numbers, given, results))
        self.call_sites.append(capture_call_site())

    def on_free(self, slots: Sequence[int]) -> None:
        """Record that slots were freed and can be reused."""
        for slot in slots:
            number = self._numbers.get(slot)
            if number is not None and number not in self.inputs:
                del self._numbers[slot]

    def on_wait(self, is_once: bool = False) -> None:
        """Record that the function waits for a reply of the processes.

        Raises:
            TraceError: It would wait at each call.
        """
        if threading.get_ident() != self._thread:
            return
        if not is_once:
            raise TraceError(
                "a traced function cannot read a value (item, a comparison, inspect) or create a"
                " shape that depends on one: do it outside of the traced function; for optimizers"
                " that count their steps, use fused=True"
            )
        self.is_first_of_its_kind = True

    def on_put(self) -> None:
        """Record that the function sends a tensor of the program.

        Raises:
            TraceError: Always.
        """
        if threading.get_ident() == self._thread:
            raise TraceError(
                "a traced function cannot send a local tensor, which may differ in the next call:"
                " pass it as an argument, or put it on the mesh before"
            )

    def number_of(self, tensor: Any) -> int | None:
        """Return the number of a value that the function created or used; otherwise None."""
        return self.number_of_slot(tensor._ref.slot)

    def number_of_slot(self, slot: int) -> int | None:
        """Return the number of the value in a slot, or None."""
        return self._numbers.get(slot)

    def is_written(self, one: Input) -> bool:
        """Return whether the function has written to an input."""
        return one.base in self._written

    def live_values(self) -> list[int]:
        """Return the values that the function has created and that are still alive."""
        return [number for number in self._numbers.values() if number not in self.inputs]

    def producer_of(self, number: int) -> str:
        """Return the formatted call site where a value was created."""
        index = next(i for i, op in enumerate(self._ops) if number in op.results)
        return format_call_site(self.call_sites[index])

    def body(self, results: Sequence[int]) -> OpSequence:
        """Return the trace; `results` are the values that it keeps."""
        compiled_ops = tuple(self._engine.compiled_ops[number] for number in self._compiled_ops)
        return OpSequence(
            compiled_ops, tuple(self._ops), tuple(self.inputs), tuple(results), self._count
        )

    def _payload(self, compiled_op: CompiledOp, place: int) -> Any:
        if compiled_op.kind == "actor_call":
            raise TraceError(
                f"a traced function cannot call {compiled_op.name}, an endpoint of an actor: call"
                " it outside of the traced function, or use a remote function"
            )
        if compiled_op.kind == "adopt":
            # This is the first call of its kind; later calls use another compiled op.
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
