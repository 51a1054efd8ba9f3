"""The actor in each process that stores the values and executes the compiled ops.

While the program uses one stream, the actor executes instructions as they arrive. With more
streams, there is a thread for each of them, and the actor distributes the instructions
(`_worker/stream_threads.py`).
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from mesh_core import Actor, current_rank, endpoint
from mesh_tensor._dispatch.data_dependent import describe
from mesh_tensor._instructions.compiled_op import CompiledOp, Eviction
from mesh_tensor._worker.failure import FailedValue, Failure
from mesh_tensor._worker.instruction_set import KINDS
from mesh_tensor._worker.remote_functions import attempt, invoke
from mesh_tensor._worker.runner import Runner
from mesh_tensor._worker.stream_threads import StreamThreads
from mesh_tensor._worker.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core import Port
    from mesh_tensor._remote.call_protocol import FirstCallResult

__all__ = ["Interpreter"]


class Interpreter(Actor):
    """The values of one process, and the compiled ops that compute them."""

    def __init__(self) -> None:
        self._failures: list[Failure] = []
        self._world = World(current_rank().rank, [])
        self._runner = Runner(self._world, self._failures.append, KINDS)
        self._threads: StreamThreads | None = None

    def __cleanup__(self, error: Exception | None) -> None:
        if self._threads is not None:
            self._threads.close()

    @endpoint
    def run(
        self,
        first: int,
        instructions: bytes,
        numbers: bytes,
        compiled_ops: list[CompiledOp | Eviction],
        given: list[Any],
        slots: int,
    ) -> list[Failure]:
        """Execute a batch; return the original failures in it.

        Args:
            first: The number of the first operation.
            instructions: The operations, and the slots to free.
            numbers: The floats among the arguments of the operations.
            compiled_ops: The compiled ops that the batch is the first to use.
            given: The values that the batch carries.
            slots: The total number of slots.
        """
        runner = self._runner
        for compiled_op in compiled_ops:
            if isinstance(compiled_op, Eviction):
                runner.evict(compiled_op.opcodes)
            else:
                runner.define(compiled_op)
        runner.begin(numbers, given, slots)
        runner.run(first, _decoded(instructions))
        failures = self._failures[:]
        self._failures.clear()
        return failures

    @endpoint(explicit_response_port=True)
    def run_on_streams(
        self,
        port: Port[list[Failure]],
        first: int,
        instructions: bytes,
        numbers: bytes,
        compiled_ops: list[CompiledOp | Eviction],
        given: list[Any],
        slots: int,
        acknowledged: int,
    ) -> None:
        """Like `run`, with operations of several streams; replies when all streams are done.

        After the first such batch, all requests about values are sent to `query`.
        """
        if self._threads is None:
            self._threads = StreamThreads(self._runner, self._queries)
        self._threads.run(
            port, first, _decoded(instructions), numbers, compiled_ops, given, slots, acknowledged
        )

    @endpoint(explicit_response_port=True)
    def query(self, port: Port[Any], stream_number: int, name: str, *args: Any) -> None:
        """Reply to a request about values of one stream, when the stream reaches it."""
        if self._threads is None:
            self._threads = StreamThreads(self._runner, self._queries)
        self._threads.query(port, stream_number, name, args)

    @endpoint
    def fetch(self, slot: int, wanted_of: int) -> Any:
        """Return a value in the process `wanted_of`, and None in all other processes."""
        return _fetch(self._world, slot, wanted_of)

    @endpoint
    def item(self, slot: int, ranks: bytes) -> Any:
        """Return the single element of a value."""
        return _item(self._world, slot, ranks)

    @endpoint
    def describe(self, slots: list[int], operands: list[int], ranks: bytes) -> Any:
        """Describe values, and which operands they share storage with."""
        return _describe(self._world, slots, operands, ranks)

    @endpoint(explicit_response_port=True)
    def count(self, port: Port[dict[str, int]]) -> None:
        """Return the number of objects that the process keeps."""
        if self._threads is not None:
            self._threads.count(port)
            return
        port.send(
            {
                "compiled_ops": len(self._runner.compiled_ops),
                "values": self._runner.count(),
                "borrows": 0,
            }
        )

    @endpoint
    def invoke(self, function: int, blob: bytes, slots: list[int]) -> Any:
        """Call a remote function and return its value."""
        return invoke(self._world, function, blob, slots)

    @endpoint
    def attempt(self, function: int, blob: bytes, slots: list[int], token: int) -> FirstCallResult:
        """Call a remote function to observe its results; `adopt` or `drop_held` releases them."""
        return attempt(self._world, function, blob, slots, token)

    @endpoint
    def drop_held(self, token: int) -> None:
        """Discard the results of a first call."""
        self._world.held.pop(token, None)

    @endpoint
    def open_store(self) -> tuple[str, int]:
        """Start the store for the rendezvous of all processes; return its address."""
        return self._world.open_store()

    @endpoint
    def join(self, address: str, port: int, size: int) -> None:
        """Join the other processes at the store."""
        self._world.join(address, port, size)

    @property
    def _queries(self) -> dict[str, Callable[..., Any]]:
        """The functions that `query` can call, by name; they take the world of a stream."""
        return {
            "fetch": _fetch,
            "item": _item,
            "describe": _describe,
            "invoke": invoke,
            "attempt": attempt,
        }


def _decoded(instructions: bytes) -> list[int]:
    code = array("I")
    code.frombytes(instructions)
    return code.tolist()


def _fetch(world: World, slot: int, wanted_of: int) -> Any:
    if world.rank != wanted_of:
        return None
    value = world.values[slot]
    return value if isinstance(value, FailedValue) else world.outgoing(value)


def _item(world: World, slot: int, ranks: bytes) -> Any:
    if not world.is_in(ranks):
        return None
    value = world.values[slot]
    return None if isinstance(value, FailedValue) else value.item()


def _describe(world: World, slots: list[int], operands: list[int], ranks: bytes) -> Any:
    if not world.is_in(ranks):
        return None
    given = [world.values[slot] for slot in operands]
    return [describe(world.values[slot], given) for slot in slots]
