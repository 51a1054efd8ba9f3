"""The streams of one process: a thread for each, and the distribution of batches to them.

The actor that distributes batches never waits for a stream, so that a slow stream does not delay
others. It also creates the objects that compiled ops need, including process groups, because all
processes see compiled ops in the same order, while their streams execute them in different orders.
"""

from __future__ import annotations

import threading
from contextvars import copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from mesh_tensor._instructions.compiled_op import CompiledOp, Eviction
from mesh_tensor._instructions.instruction_stream import FREE
from mesh_tensor._worker.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextvars import Context

    from mesh_core import Port
    from mesh_tensor._worker.failure import Failure

__all__ = ["Reply", "StreamThreads"]


class Reply(NamedTuple):
    """The reply to a request about values.

    Attributes:
        value: The value.
        failures: Failures in this process that the program may not know yet, because the
            acknowledgement of their batch can arrive after this reply.
    """

    value: Any
    failures: list[Failure]


class _Part:
    """The part of a batch that belongs to one stream."""

    def __init__(self) -> None:
        self.instructions: list[int] = []
        #: The number of each operation.
        self.numbers: list[int] = []


class _Answer:
    """Acknowledges a batch once all streams have executed their part.

    Args:
        port: The port to reply to.
        parts: The number of parts.
        outcome: Returns the reply.
    """

    def __init__(self, port: Port[Any], parts: int, outcome: Callable[[], Any]) -> None:
        self._port = port
        self._left = parts
        self._outcome = outcome
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def part_is_done(self, error: BaseException | None = None) -> None:
        with self._lock:
            self._left -= 1
            self._error = self._error or error
            is_last = self._left == 0
        if is_last and self._error is not None:
            self._port.exception(self._error)
        elif is_last:
            self._port.send(self._outcome())


class _Thread:
    """One stream: runs its jobs in order.

    Args:
        number: The number of the stream in the engine.
        runner: The values and compiled ops of the stream.
        torch_threads: The number of threads that PyTorch uses in it.
    """

    def __init__(self, number: int, runner: Runner, torch_threads: int) -> None:
        self.runner = runner
        self._number = number
        self._torch_threads = torch_threads
        self._is_on_device = False
        #: The device of the thread that distributes batches.
        self._device = torch.cuda.current_device() if _device_is_used() else None
        self._jobs: SimpleQueue[tuple[Context, Callable[[], object]] | None] = SimpleQueue()
        name = f"mesh-tensor-stream-{number}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def put(self, job: Callable[[], object]) -> None:
        """Add a job, which must not raise."""
        self._jobs.put((copy_context(), job))

    def close(self) -> None:
        self._jobs.put(None)

    def _work(self) -> None:
        torch.set_num_threads(self._torch_threads)
        if self._device is not None:
            torch.cuda.set_device(self._device)
        while True:
            job = self._jobs.get()
            if job is None:
                return
            if self._number and not self._is_on_device and _device_is_used():
                self._move_to_device()
            context, function = job
            context.run(function)
            # Do not keep the objects of a job alive until the next job arrives.
            del job, context, function

    def _move_to_device(self) -> None:
        """Run the jobs that follow concurrently with the other streams on the device, too."""
        self._is_on_device = True
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        torch.cuda.set_stream(stream)


def _device_is_used() -> bool:
    is_used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return is_used


class StreamThreads:
    """All streams of one process.

    Args:
        default: The runner of the default stream, which has executed all instructions so far.
        queries: The functions that serve requests about values, by name. Their first argument is
            the world of the stream.
    """

    def __init__(self, default: Runner, queries: Mapping[str, Callable[..., Any]]) -> None:
        self._queries = queries
        self._torch_threads = torch.get_num_threads()
        self._world = default.world
        self._kinds = default.kinds
        self._lock = threading.Lock()
        #: Failures that the program has not acknowledged, and failures that have not been sent.
        self._unacknowledged: list[Failure] = []
        self._unsent: list[Failure] = []
        default.on_failure = self._record_failure
        self._threads = {0: _Thread(0, default, self._torch_threads)}
        self._compiled_ops: dict[int, CompiledOp] = dict(default.compiled_ops)
        #: The compiled ops of streams other than the default stream.
        self._others = {one.opcode for one in self._compiled_ops.values() if one.stream_number}

    def run(
        self,
        port: Port[list[Failure]],
        first: int,
        instructions: list[int],
        numbers: bytes,
        compiled_ops: Sequence[CompiledOp | Eviction],
        given: list[Any],
        slots: int,
        acknowledged: int,
    ) -> None:
        """Distribute a batch; see `Interpreter.run_on_streams`."""
        with self._lock:
            self._unacknowledged = [
                one for one in self._unacknowledged if one.number >= acknowledged
            ]
        for compiled_op in compiled_ops:
            if isinstance(compiled_op, Eviction):
                self._evict(compiled_op.opcodes)
            else:
                self._define(compiled_op)
        parts = self._split(first, instructions)
        if not parts:
            port.send(self._take_failures())
            return
        answer = _Answer(port, len(parts), self._take_failures)
        for stream_number, part in parts.items():
            thread = self._thread(stream_number)

            def job(runner: Runner = thread.runner, part: _Part = part) -> None:
                try:
                    runner.begin(numbers, given, slots)
                    runner.run(first, part.instructions, part.numbers or None)
                except BaseException as error:
                    answer.part_is_done(error)
                else:
                    answer.part_is_done()

            thread.put(job)

    def query(self, port: Port[Any], stream_number: int, name: str, args: tuple[Any, ...]) -> None:
        """Reply to a request about values, in the order of their stream."""
        thread = self._thread(stream_number)
        function = self._queries[name]

        def job() -> None:
            try:
                with torch.no_grad():
                    value = function(thread.runner.world, *args)
                with self._lock:
                    failures = self._unacknowledged[:]
                port.send(Reply(value, failures))
            except BaseException as error:
                port.exception(error)

        thread.put(job)

    def count(self, port: Port[dict[str, int]]) -> None:
        """Count the objects that all streams keep, after they have executed all jobs so far."""
        threads = list(self._threads.values())

        def outcome() -> dict[str, int]:
            values = sum(one.runner.count() for one in threads)
            borrows = len(self._world.exchange)
            return {"compiled_ops": len(self._compiled_ops), "values": values, "borrows": borrows}

        answer = _Answer(port, len(threads), outcome)
        for one in threads:
            one.put(answer.part_is_done)

    def close(self) -> None:
        """End the threads."""
        self._world.exchange.close()
        for one in self._threads.values():
            one.close()

    def _thread(self, stream_number: int) -> _Thread:
        found = self._threads.get(stream_number)
        if found is None:
            runner = Runner(
                self._world.for_stream(stream_number), self._record_failure, self._kinds
            )
            found = self._threads[stream_number] = _Thread(
                stream_number, runner, self._torch_threads
            )
        return found

    def _define(self, compiled_op: CompiledOp) -> None:
        self._compiled_ops[compiled_op.opcode] = compiled_op
        if compiled_op.stream_number:
            self._others.add(compiled_op.opcode)
        self._thread(compiled_op.stream_number).runner.define(compiled_op)

    def _evict(self, opcodes: Sequence[int]) -> None:
        for opcode in opcodes:
            self._compiled_ops.pop(opcode, None)
        self._others.difference_update(opcodes)
        for one in self._threads.values():
            runner = one.runner
            # Queue it behind the instructions that still use the compiled ops.
            one.put(lambda runner=runner: runner.evict(opcodes))  # type: ignore[misc]

    def _split(self, first: int, instructions: list[int]) -> dict[int, _Part]:
        """Return the part of each stream.

        A part that contains all instructions has no list of numbers.
        """
        if not instructions:
            return {}
        if self._others.isdisjoint(instructions):
            whole = _Part()
            whole.instructions = instructions
            return {0: whole}
        parts: dict[int, _Part] = {}
        at, number, compiled_ops = 0, first, self._compiled_ops
        while at < len(instructions):
            if instructions[at] == FREE:
                parts.setdefault(0, _Part()).instructions += instructions[at : at + 2]
                at += 2
                continue
            compiled_op = compiled_ops[instructions[at]]
            part = parts.setdefault(compiled_op.stream_number, _Part())
            part.instructions += instructions[at : at + compiled_op.instruction_len]
            part.numbers.append(number)
            at += compiled_op.instruction_len
            number += 1
        return parts

    def _record_failure(self, failure: Failure) -> None:
        with self._lock:
            self._unacknowledged.append(failure)
            self._unsent.append(failure)

    def _take_failures(self) -> list[Failure]:
        with self._lock:
            failures, self._unsent = self._unsent, []
        return failures
