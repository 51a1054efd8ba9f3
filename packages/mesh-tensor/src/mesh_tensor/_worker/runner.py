"""The operations of one stream in one process: its values, and how they are computed."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from mesh_tensor._instructions.instruction_stream import FREE
from mesh_tensor._worker.failure import FailedValue, Failure, TraceFailed
from mesh_tensor._worker.step_compiler import skip_step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mesh_tensor._instructions.compiled_op import CompiledOp
    from mesh_tensor._worker.step_compiler import Step
    from mesh_tensor._worker.world import World

__all__ = ["Runner"]

_GROWTH = 1024


class Runner:
    """Executes the instructions of one stream, on one thread.

    Args:
        world: The world of the process, with the values of the stream.
        on_failure: Called with each original failure.
        kinds: For each kind of compiled op, the function that compiles a step for it.
    """

    def __init__(
        self,
        world: World,
        on_failure: Callable[[Failure], object],
        kinds: Mapping[str, Callable[[CompiledOp, World], Step]],
    ) -> None:
        self.world = world
        self.kinds = kinds
        self.compiled_ops: dict[int, CompiledOp] = {}
        self._steps: dict[int, Callable[[list[int], int], int]] = {}
        self._values = world.values
        self.on_failure = on_failure

    def begin(self, numbers: bytes, given: list[Any], slots: int) -> None:
        """Set the data that a batch carries in addition to the instructions.

        Args:
            numbers: The floats among the arguments of its operations.
            given: The values.
            slots: The total number of slots.
        """
        values = self._values
        if slots > len(values):
            values.extend([None] * (slots - len(values) + _GROWTH))
        self.world.given = given
        floats = array("d")
        floats.frombytes(numbers)
        self.world.numbers = floats

    def run(
        self, number: int, instructions: list[int], numbers: Sequence[int] | None = None
    ) -> None:
        """Execute instructions.

        Args:
            number: The number of the first operation.
            instructions: The operations, and the slots to free.
            numbers: The number of each operation, if they are not consecutive.
        """
        values, steps = self._values, self._steps
        at, end = 0, len(instructions)
        first = number
        with torch.no_grad():
            while at < end:
                opcode = instructions[at]
                if opcode == FREE:
                    values[instructions[at + 1]] = None
                    at += 2
                    continue
                try:
                    at = steps[opcode](instructions, at + 1)
                except Exception as error:
                    own = number if numbers is None else numbers[number - first]
                    at = self.mark_failed(own, opcode, instructions, at + 1, error)
                number += 1

    def define(self, compiled_op: CompiledOp) -> None:
        """Add a compiled op that later instructions use."""
        self.compiled_ops[compiled_op.opcode] = compiled_op
        if not self.world.is_in(compiled_op.ranks):
            self._steps[compiled_op.opcode] = skip_step(compiled_op)
            return
        try:
            step = self.kinds[compiled_op.kind](compiled_op, self.world)
        except Exception as error:
            step = _raiser(error)
        self._steps[compiled_op.opcode] = step

    def step_of(self, opcode: int) -> Callable[[list[int], int], int]:
        """Return the step that executes the operations of a compiled op."""
        return self._steps[opcode]

    def evict(self, opcodes: Sequence[int]) -> None:
        """Remove compiled ops that instructions no longer use. Unknown opcodes are ignored."""
        for opcode in opcodes:
            self.compiled_ops.pop(opcode, None)
            self._steps.pop(opcode, None)

    def count(self) -> int:
        """Return the number of values in the slots."""
        return sum(one is not None for one in self._values)

    def mark_failed(
        self, number: int, opcode: int, instructions: list[int], at: int, error: Exception
    ) -> int:
        """Store the failure in the results, and in operands that were possibly partly written.

        Returns:
            The position of the next operation.
        """
        compiled_op, values = self.compiled_ops[opcode], self._values
        operands = instructions[at : at + compiled_op.operands]
        failed_value = None
        if compiled_op.kind != "put":
            given = (values[slot] for slot in operands)
            failed_value = next((one for one in given if isinstance(one, FailedValue)), None)
        failures = []
        if isinstance(error, TraceFailed):
            failures = [replace(one, number=number, within=one.number) for one in error.failures]
        elif failed_value is None:
            failures = [Failure.of(number, self.world.rank, compiled_op.name, error)]
        for one in failures:
            self.on_failure(one)
        failed_value = failed_value or FailedValue(failures[0])
        for slot in instructions[
            at + compiled_op.operands + compiled_op.numbers : at + compiled_op.instruction_len - 1
        ]:
            values[slot] = failed_value
        lost = [values[operands[index]] for index in compiled_op.mutated]
        for index in compiled_op.mutated:
            if not isinstance(values[operands[index]], torch.Tensor):
                values[operands[index]] = failed_value
        storages = {one.untyped_storage()._cdata for one in lost if isinstance(one, torch.Tensor)}
        if storages:
            self.world.propagate_failure(storages, failed_value)
        return at + compiled_op.instruction_len - 1


def _raiser(error: Exception) -> Callable[[list[int], int], int]:
    def step(_: list[int], __: int) -> int:
        raise error.with_traceback(None)

    return step
