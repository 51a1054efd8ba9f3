"""What each process does with the words: an actor that keeps the values and runs the plans.

As long as the program has one stream, words are run where they come in. With more of them there is
a thread for each, and the actor hands out what it is sent (`_streams/worker_threads.py`).
"""

from __future__ import annotations

import os
from array import array
from typing import TYPE_CHECKING, Any

import torch

from mesh_core import Actor, current_rank, endpoint
from mesh_tensor._dispatch.data_dependent import describe
from mesh_tensor._engine.plan import Forget, Plan
from mesh_tensor._remote.steps import attempt, invoke
from mesh_tensor._streams.worker_threads import StreamThreads
from mesh_tensor._worker.failure import FailedValue, Failure
from mesh_tensor._worker.runner import Runner
from mesh_tensor._worker.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core import Port
    from mesh_tensor._remote.call_protocol import Trial

__all__ = ["Interpreter"]


class Interpreter(Actor):
    """The values of one process, and the plans that make them.

    Args:
        neighbours: How many processes there are on its host: they share the processors.
    """

    def __init__(self, neighbours: int) -> None:
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // neighbours))
        self._failures: list[Failure] = []
        self._world = World(current_rank().rank, [])
        self._runner = Runner(self._world, self._failures.append)
        self._threads: StreamThreads | None = None

    def __cleanup__(self, error: Exception | None) -> None:
        if self._threads is not None:
            self._threads.close()

    @endpoint
    def run(
        self,
        first: int,
        words: bytes,
        numbers: bytes,
        plans: list[Plan | Forget],
        given: list[Any],
        slots: int,
    ) -> list[Failure]:
        """Does a batch; gives what has failed in it for a reason of its own.

        Args:
            first: The number of the first operation.
            words: The operations, and what is let go of.
            numbers: The floats among their arguments.
            plans: What they are the first to use.
            given: Values that the batch brings.
            slots: How many slots there are in all.
        """
        runner = self._runner
        for plan in plans:
            if isinstance(plan, Forget):
                runner.forget(plan.numbers)
            else:
                runner.define(plan)
        runner.begin(numbers, given, slots)
        runner.run(first, _words_of(words))
        failures = self._failures[:]
        self._failures.clear()
        return failures

    @endpoint(explicit_response_port=True)
    def run_on_streams(
        self,
        port: Port[list[Failure]],
        first: int,
        words: bytes,
        numbers: bytes,
        plans: list[Plan | Forget],
        given: list[Any],
        slots: int,
        heard: int,
    ) -> None:
        """As `run`, with operations of several streams; answers when all have done theirs.

        From the first such batch on, all that is asked of a value comes by `ask`.
        """
        if self._threads is None:
            self._threads = StreamThreads(self._runner, self._asked)
        self._threads.run(port, first, _words_of(words), numbers, plans, given, slots, heard)

    @endpoint(explicit_response_port=True)
    def ask(self, port: Port[Any], lane: int, name: str, *args: Any) -> None:
        """Answers a question about values of one stream, when that has come so far."""
        if self._threads is None:
            self._threads = StreamThreads(self._runner, self._asked)
        self._threads.ask(port, lane, name, args)

    @endpoint
    def fetch(self, slot: int, wanted_of: int) -> Any:
        """Gives a value, from the process that is asked for it; from the others nothing."""
        return _fetch(self._world, slot, wanted_of)

    @endpoint
    def item(self, slot: int, ranks: bytes) -> Any:
        """Gives the one element of a value."""
        return _item(self._world, slot, ranks)

    @endpoint
    def describe(self, slots: list[int], operands: list[int], ranks: bytes) -> Any:
        """Tells what some values are, and which of the operands' storage they have."""
        return _describe(self._world, slots, operands, ranks)

    @endpoint(explicit_response_port=True)
    def count(self, port: Port[dict[str, int]]) -> None:
        """Counts what it keeps."""
        if self._threads is not None:
            self._threads.count(port)
            return
        port.send({"plans": len(self._runner.plans), "values": self._runner.count(), "loans": 0})

    @endpoint
    def invoke(self, function: int, blob: bytes, slots: list[int]) -> Any:
        """Calls a remote function for its value."""
        return invoke(self._world, function, blob, slots)

    @endpoint
    def attempt(self, function: int, blob: bytes, slots: list[int], token: int) -> Trial:
        """Calls a remote function to see what it gives; `adopt` or `drop_held` takes that."""
        return attempt(self._world, function, blob, slots, token)

    @endpoint
    def drop_held(self, token: int) -> None:
        """Forgets what a first call gave."""
        self._world.held.pop(token, None)

    @endpoint
    def open_store(self) -> tuple[str, int]:
        """Begins the meeting point of all processes; gives its address."""
        return self._world.open_store()

    @endpoint
    def join(self, address: str, port: int, size: int) -> None:
        """Meets the other processes there."""
        self._world.join(address, port, size)

    @property
    def _asked(self) -> dict[str, Callable[..., Any]]:
        """What `ask` answers: functions of the world of a stream."""
        return {
            "fetch": _fetch,
            "item": _item,
            "describe": _describe,
            "invoke": invoke,
            "attempt": attempt,
        }


def _words_of(words: bytes) -> list[int]:
    code = array("I")
    code.frombytes(words)
    return code.tolist()


def _fetch(world: World, slot: int, wanted_of: int) -> Any:
    if world.rank != wanted_of:
        return None
    value = world.values[slot]
    return value if isinstance(value, FailedValue) else world.outgoing(value)


def _item(world: World, slot: int, ranks: bytes) -> Any:
    if not world.takes_part(ranks):
        return None
    value = world.values[slot]
    return None if isinstance(value, FailedValue) else value.item()


def _describe(world: World, slots: list[int], operands: list[int], ranks: bytes) -> Any:
    if not world.takes_part(ranks):
        return None
    given = [world.values[slot] for slot in operands]
    return [describe(world.values[slot], given) for slot in slots]
