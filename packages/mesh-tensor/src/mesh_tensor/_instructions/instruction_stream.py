"""The instruction stream to the processes: one buffer of instructions, in program order.

An instruction is a sequence of 32-bit integers: the opcode, which is the number of a compiled op,
and the slots of the operands and results. The opcode `FREE` is followed by the slot to free. All
processes receive the same instructions. The thread that fills the buffer sends it; a background
thread sends a partly filled buffer after a short delay. The number of outstanding operations is
limited: a thread that reaches the limit blocks.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from typing import TYPE_CHECKING, Any

from mesh_core import MeshError
from mesh_tensor._instructions.call_site import CallSite, capture_call_site

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mesh_core import Future
    from mesh_tensor._streams.slot_allocator import StreamSlots
    from mesh_tensor._trace.recorder import Recorder

__all__ = ["FREE", "InstructionStream"]

#: The opcode that frees the slot after it.
FREE = 0

#: The buffer is sent when it contains this many integers.
_BUFFER_LEN_MAX = 4096
#: How long a partly filled buffer waits for more operations.
_IDLE_FLUSH_S = 0.0002
#: The maximum number of outstanding operations, that is, issued but not acknowledged by all
#: processes.
_WINDOW_OPS = 50_000

#: The acknowledgement of a batch; contains the failures in it.
Ack = Any


class InstructionStream:
    """The operations that a program has issued to the processes of one engine, and their progress.

    Args:
        send: Sends a batch to all processes. Its arguments are the number of the first operation,
            the instructions, the floats, the compiled ops that the batch is the first to use, and
            the values for `put`.
        on_ack: Called with the acknowledgement of each batch, in order.
        flushes_when_idle: Whether a background thread sends a partly filled buffer after a short
            delay. Otherwise, a buffer is sent only when it is full or when the program waits for a
            result.
    """

    def __init__(
        self,
        send: Callable[[int, bytes, bytes, list[Any], list[Any]], Future[Ack]],
        on_ack: Callable[[Ack], None],
        flushes_when_idle: bool = True,
    ) -> None:
        self._send = send
        self._on_ack = on_ack
        self._flushes_when_idle = flushes_when_idle
        #: Held while an operation is assembled. Finalizers run on any thread and must never acquire
        #: it.
        self.lock = threading.RLock()
        self._buffer = array("I")
        self._numbers = array("d")
        self._compiled_ops: list[Any] = []
        self._values: list[Any] = []
        self._freed: list[int] = []
        #: Free slots of the default stream.
        self.free_slots: list[int] = []
        self._slots = 0
        #: The owner of each slot that belongs to another stream or is borrowed. Such slots are not
        #: simply added to `free_slots` when they are freed.
        self.stream_slots: dict[int, StreamSlots] = {}
        self._issued = 0
        self._sent = 0
        self._in_flight: deque[tuple[int, Future[Ack]]] = deque()
        #: The instructions of the outstanding batches, from which dependencies on a failure are
        #: determined.
        self._batches: deque[bytes] = deque()
        #: The call site of each operation that can still fail. The number of the first one is
        #: `_call_sites_from`.
        self._call_sites: deque[CallSite] = deque()
        self._call_sites_from = 0
        self._error: BaseException | None = None
        #: Records all operations while a trace is recorded.
        self.recorder: Recorder | None = None
        self._filled = threading.Event()
        self._flusher: threading.Thread | None = None

    @property
    def is_over(self) -> bool:
        """Whether the processes have exited."""
        return self._error is not None

    @property
    def issued(self) -> int:
        """The number of operations issued so far."""
        return self._issued

    @property
    def done(self) -> int:
        """The number of operations that all processes have acknowledged."""
        return self._call_sites_from

    @property
    def freed(self) -> list[int]:
        """The list to which any thread can append slots to free, at any time."""
        return self._freed

    def new_slot(self, stream_slots: StreamSlots) -> int:
        """Return a slot that was never used. The caller holds the lock."""
        slot = self._slots
        self._slots += 1
        if stream_slots.number:
            self.stream_slots[slot] = stream_slots
        return slot

    def issue(
        self,
        instruction: tuple[int, ...],
        operands: Sequence[Any] = (),
        call_site: CallSite | None = None,
    ) -> None:
        """Add an operation. The caller holds the lock.

        Args:
            instruction: The integers of the instruction.
            operands: The operands whose slots the instruction contains.
            call_site: The call site of the operation. Default: the caller's.
        """
        if self.recorder is not None:
            self.recorder.record(instruction, operands)
        buffer = self._buffer
        is_first = not buffer
        if self._freed:
            self._free()
        buffer.extend(instruction)
        self._issued += 1
        if is_first:
            # The flusher is notified only now, because it checks the buffer when it wakes up.
            self._begin()
        self._call_sites.append(capture_call_site() if call_site is None else call_site)
        if len(buffer) >= _BUFFER_LEN_MAX:
            self.flush()

    def define(self, compiled_op: Any) -> None:
        """Add a compiled op for the operations that follow. The caller holds the lock."""
        self._compiled_ops.append(compiled_op)

    def add_numbers(self, numbers: Sequence[float]) -> range:
        """Add floats; return their positions in the batch. The caller holds the lock."""
        first = len(self._numbers)
        self._numbers.extend(numbers)
        return range(first, first + len(numbers))

    def number_at(self, place: int) -> float:
        """Return a float of the batch."""
        return self._numbers[place]

    def value_at(self, place: int) -> Any:
        """Return a value of the batch."""
        return self._values[place]

    def add_value(self, value: Any) -> int:
        """Add a value; return its position in the batch. The caller holds the lock."""
        self._values.append(value)
        return len(self._values) - 1

    def flush(self) -> None:
        """Send the buffer, and block while too many operations are outstanding.

        Raises:
            MeshError: The processes have exited.
        """
        with self.lock:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if self._freed:
                self._free()
            if self._buffer or self._compiled_ops:
                self._send_batch()
            self._collect()
            while self._issued - self._call_sites_from > _WINDOW_OPS:
                self._collect_first()

    def flush_for_reply(self, is_once: bool = False) -> None:
        """Send the buffer, because the program is about to wait for a result.

        Args:
            is_once: Whether the result is cached, so that the request is not repeated.

        Raises:
            TraceError: A trace is being recorded, which cannot contain a wait.
            MeshError: The processes have exited.
        """
        if self.recorder is not None:
            self.recorder.on_wait(is_once)
        self.flush()

    def settle(self) -> None:
        """Process all acknowledgements that have arrived, so that failures are known."""
        with self.lock:
            self._collect()

    def fail(self, error: BaseException) -> None:
        """Close the stream with an error: nothing is sent any more."""
        with self.lock:
            self._error = self._error or error
            self._buffer = array("I")
            self._in_flight.clear()
            self._batches.clear()
            self._call_sites.clear()
            self._filled.set()

    def call_site_of(self, number: int) -> CallSite:
        """Return the call site of an operation that has not been acknowledged."""
        index = number - self._call_sites_from
        return self._call_sites[index] if 0 <= index < len(self._call_sites) else ()

    def instructions_since_ack(self) -> tuple[int, array[int]]:
        """Return the number of the first unacknowledged operation, and all instructions since."""
        instructions = array("I")
        for batch in self._batches:
            instructions.frombytes(batch)
        instructions.extend(self._buffer)
        return self._call_sites_from, instructions

    def _send_batch(self) -> None:
        instructions, compiled_ops, values = (
            self._buffer.tobytes(),
            self._compiled_ops,
            self._values,
        )
        numbers, self._numbers = self._numbers.tobytes(), array("d")
        # Keep the same array object, because the flusher checks its length.
        del self._buffer[:]
        self._compiled_ops, self._values = [], []
        first, self._sent = self._sent, self._issued
        self._in_flight.append(
            (self._sent, self._send(first, instructions, numbers, compiled_ops, values))
        )
        self._batches.append(instructions)

    def _free(self) -> None:
        # Other threads may append concurrently: process only the elements counted here.
        count = len(self._freed)
        if self.recorder is not None:
            self.recorder.on_free(self._freed[:count])
        if self.stream_slots:
            self._free_on_streams(self._freed[:count])
        else:
            for slot in self._freed[:count]:
                self._buffer.extend((FREE, slot))
                self.free_slots.append(slot)
        del self._freed[:count]

    def _free_on_streams(self, slots: Sequence[int]) -> None:
        for slot in slots:
            stream_slots = self.stream_slots.get(slot)
            if stream_slots is None or stream_slots.free is None:
                self._buffer.extend((FREE, slot))
            else:
                # On another stream, a free is an operation, so that it runs in the order of the
                # stream.
                self._buffer.extend((stream_slots.free.opcode, slot))
                self._issued += 1
                self._call_sites.append(())
            if stream_slots is None:
                self.free_slots.append(slot)
            else:
                stream_slots.put_back(slot)

    def _collect(self) -> None:
        while self._in_flight and self._in_flight[0][1].done():
            self._collect_first()

    def _collect_first(self) -> None:
        upto, answer = self._in_flight[0]
        try:
            ack = answer.get()
        except MeshError as error:
            self.fail(error)
            raise
        self._in_flight.popleft()
        self._on_ack(ack)
        self._batches.popleft()
        for _ in range(upto - self._call_sites_from):
            self._call_sites.popleft()
        self._call_sites_from = upto

    def _begin(self) -> None:
        """Have the buffer sent after a short delay, even if no more operations follow."""
        if not self._flushes_when_idle:
            return
        if self._flusher is None:
            self._flusher = threading.Thread(
                target=self._flush_when_idle, name="mesh-tensor-flusher", daemon=True
            )
            self._flusher.start()
        self._filled.set()

    def _flush_when_idle(self) -> None:
        while self._error is None:
            self._filled.wait()
            self._filled.clear()
            seen = -1
            # While more operations arrive, the thread that fills the buffer sends it.
            while self._buffer and seen != self._issued:
                seen = self._issued
                time.sleep(_IDLE_FLUSH_S)
            if self._buffer:
                try:
                    self.flush()
                except BaseException:
                    # The next thread that issues or fetches something raises the error.
                    return
