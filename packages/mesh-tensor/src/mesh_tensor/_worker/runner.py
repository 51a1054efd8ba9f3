"""The operations of one stream in one process: its values, and the plans that compute them."""

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

    from mesh_tensor._instructions.compiled_op import Plan
    from mesh_tensor._worker.step_compiler import Step
    from mesh_tensor._worker.world import World

__all__ = ["Runner"]

_GROWTH = 1024


class Runner:
    """Executes the words of one stream, on one thread.

    Args:
        world: The world of the process, with the values of the stream.
        on_failure: Called with each original failure.
        kinds: For each kind of plan, the function that compiles a step for it.
    """

    def __init__(
        self,
        world: World,
        on_failure: Callable[[Failure], object],
        kinds: Mapping[str, Callable[[Plan, World], Step]],
    ) -> None:
        self.world = world
        self.kinds = kinds
        self.plans: dict[int, Plan] = {}
        self._steps: dict[int, Callable[[list[int], int], int]] = {}
        self._values = world.values
        self.on_failure = on_failure

    def begin(self, numbers: bytes, given: list[Any], slots: int) -> None:
        """Set the data that a batch carries in addition to the words.

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

    def run(self, number: int, words: list[int], numbers: Sequence[int] | None = None) -> None:
        """Execute words.

        Args:
            number: The number of the first operation.
            words: The operations, and the slots to free.
            numbers: The number of each operation, if they are not consecutive.
        """
        values, steps = self._values, self._steps
        at, end = 0, len(words)
        first = number
        with torch.no_grad():
            while at < end:
                plan = words[at]
                if plan == FREE:
                    values[words[at + 1]] = None
                    at += 2
                    continue
                try:
                    at = steps[plan](words, at + 1)
                except Exception as error:
                    own = number if numbers is None else numbers[number - first]
                    at = self.mark_failed(own, plan, words, at + 1, error)
                number += 1

    def define(self, plan: Plan) -> None:
        """Add a plan that later words use."""
        self.plans[plan.number] = plan
        if not self.world.takes_part(plan.ranks):
            self._steps[plan.number] = skip_step(plan)
            return
        try:
            step = self.kinds[plan.kind](plan, self.world)
        except Exception as error:
            step = _raiser(error)
        self._steps[plan.number] = step

    def step_of(self, number: int) -> Callable[[list[int], int], int]:
        """Return the step that executes the operations of a plan."""
        return self._steps[number]

    def forget(self, numbers: Sequence[int]) -> None:
        """Remove plans that words no longer use. Unknown numbers are ignored."""
        for number in numbers:
            self.plans.pop(number, None)
            self._steps.pop(number, None)

    def count(self) -> int:
        """Return the number of values in the slots."""
        return sum(one is not None for one in self._values)

    def mark_failed(
        self, number: int, index: int, words: list[int], at: int, error: Exception
    ) -> int:
        """Store the failure in the results, and in operands that were possibly partly written.

        Returns:
            The position of the next operation.
        """
        plan, values = self.plans[index], self._values
        operands = words[at : at + plan.operands]
        failed_value = None
        if plan.kind != "put":
            given = (values[slot] for slot in operands)
            failed_value = next((one for one in given if isinstance(one, FailedValue)), None)
        failures = []
        if isinstance(error, TraceFailed):
            failures = [replace(one, number=number, within=one.number) for one in error.failures]
        elif failed_value is None:
            failures = [Failure.of(number, self.world.rank, plan.name, error)]
        for one in failures:
            self.on_failure(one)
        failed_value = failed_value or FailedValue(failures[0])
        for slot in words[at + plan.operands + plan.numbers : at + plan.words - 1]:
            values[slot] = failed_value
        lost = [values[operands[index]] for index in plan.mutated]
        for index in plan.mutated:
            if not isinstance(values[operands[index]], torch.Tensor):
                values[operands[index]] = failed_value
        storages = {one.untyped_storage()._cdata for one in lost if isinstance(one, torch.Tensor)}
        if storages:
            self.world.propagate_failure(storages, failed_value)
        return at + plan.words - 1


def _raiser(error: Exception) -> Callable[[list[int], int], int]:
    def step(_: list[int], __: int) -> int:
        raise error.with_traceback(None)

    return step
