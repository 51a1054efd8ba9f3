"""The operations on their way to the processes: one buffer of words, in the order of the program.

A word is 32 bits. Each operation is its plan's number and the slots of its operands and results;
what is let go of is `FREE` and a slot. All processes get the same words. Whoever fills the buffer
sends it; what has lain for a moment is sent by a thread. How many operations may be under way is
bounded: who issues more waits.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from typing import TYPE_CHECKING, Any

from mesh_core import MeshError
from mesh_tensor._engine.call_site import Place, place_here

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mesh_core import Future
    from mesh_tensor._streams.slot_allocator import Lane
    from mesh_tensor._trace.recorder import Recorder

__all__ = ["FREE", "OpStream"]

#: What stands where a plan's number would: the next word is a slot that is free from now on.
FREE = 0

#: Words after which the buffer is sent.
_WORDS_MAX = 4096
#: How long operations wait for more of them.
_LINGER_S = 0.0002
#: How many operations may have been sent that no process has said to have done.
_WINDOW_OPS = 50_000

#: Says that a batch was done; carries what failed in it.
Ack = Any


class OpStream:
    """What one program has asked of the processes of one engine, and how far they are.

    Args:
        send: Sends a batch to all processes: the number of its first operation, its words and
            floats, the plans that they are the first to use, and values for `put`.
        on_ack: Gets what each batch was answered with, in order.
        lingers: Whether what has lain for a moment is sent; or else only what fills a buffer, or
            is waited for.
    """

    def __init__(
        self,
        send: Callable[[int, bytes, bytes, list[Any], list[Any]], Future[Ack]],
        on_ack: Callable[[Ack], None],
        lingers: bool = True,
    ) -> None:
        self._send = send
        self._on_ack = on_ack
        self._lingers = lingers
        #: Held while an operation is put together. Finalizers, which run anywhere, never take it.
        self.lock = threading.RLock()
        self._words = array("I")
        self._numbers = array("d")
        self._plans: list[Any] = []
        self._values: list[Any] = []
        self._freed: list[int] = []
        #: Slots that the default stream may use again.
        self.vacant: list[int] = []
        self._slots = 0
        #: Slots that are not simply vacant when they are free: of other streams, or borrowed.
        self.lanes: dict[int, Lane] = {}
        self._issued = 0
        self._sent = 0
        self._under_way: deque[tuple[int, Future[Ack]]] = deque()
        #: The words of those, from which it is seen what depends on what.
        self._batches: deque[bytes] = deque()
        #: Where each operation was issued, as long as it may fail; the first is `_places_from`.
        self._places: deque[Place] = deque()
        self._places_from = 0
        self._error: BaseException | None = None
        #: Notes what is issued, while a trace is recorded.
        self.recorder: Recorder | None = None
        self._filled = threading.Event()
        self._flusher: threading.Thread | None = None

    @property
    def is_over(self) -> bool:
        """Whether the processes are gone."""
        return self._error is not None

    @property
    def issued(self) -> int:
        """How many operations there were so far."""
        return self._issued

    @property
    def done(self) -> int:
        """How many of them all processes have said to have done."""
        return self._places_from

    @property
    def freed(self) -> list[int]:
        """Where the slots of what is let go of are put, by any thread and at any time."""
        return self._freed

    def new_slot(self, lane: Lane) -> int:
        """Gives a slot that there was not yet; the lock is held."""
        slot = self._slots
        self._slots += 1
        if lane.number:
            self.lanes[slot] = lane
        return slot

    def issue(
        self, words: tuple[int, ...], operands: Sequence[Any] = (), place: Place | None = None
    ) -> None:
        """Adds an operation; the lock is held.

        Args:
            words: The operation, with the slots of its operands.
            operands: Those.
            place: Where it is issued, if that is another line than the one that calls.
        """
        if self.recorder is not None:
            self.recorder.note(words, operands)
        buffer = self._words
        is_first = not buffer
        if self._freed:
            self._free()
        buffer.extend(words)
        self._issued += 1
        if is_first:
            # Not before: whoever is woken looks whether there is something.
            self._begin()
        self._places.append(place_here() if place is None else place)
        if len(buffer) >= _WORDS_MAX:
            self.flush()

    def define(self, plan: Any) -> None:
        """Adds a plan, for operations from here on; the lock is held."""
        self._plans.append(plan)

    def add_numbers(self, numbers: Sequence[float]) -> range:
        """Adds floats; gives their places among those of the batch. The lock is held."""
        first = len(self._numbers)
        self._numbers.extend(numbers)
        return range(first, first + len(numbers))

    def number_at(self, place: int) -> float:
        """Gives a float of the batch."""
        return self._numbers[place]

    def value_at(self, place: int) -> Any:
        """Gives a value of the batch."""
        return self._values[place]

    def add_value(self, value: Any) -> int:
        """Adds a value; gives its place among those of the batch. The lock is held."""
        self._values.append(value)
        return len(self._values) - 1

    def flush(self) -> None:
        """Sends what there is, and waits while too much is under way.

        Raises:
            MeshError: The processes are gone.
        """
        with self.lock:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if self._freed:
                self._free()
            if self._words or self._plans:
                self._send_batch()
            self._collect()
            while self._issued - self._places_from > _WINDOW_OPS:
                self._collect_first()

    def ask(self, is_once: bool = False) -> None:
        """Sends what there is, as the program is about to wait for something of it.

        Args:
            is_once: Whether the same is not asked for a second time.

        Raises:
            TraceError: A trace is recorded, in which nothing can be waited for.
            MeshError: The processes are gone.
        """
        if self.recorder is not None:
            self.recorder.asked(is_once)
        self.flush()

    def settle(self) -> None:
        """Hears of all that has been answered, so that what has failed is known."""
        with self.lock:
            self._collect()

    def fail(self, error: BaseException) -> None:
        """Ends it: nothing is sent any more."""
        with self.lock:
            self._error = self._error or error
            self._words = array("I")
            self._under_way.clear()
            self._batches.clear()
            self._places.clear()
            self._filled.set()

    def place_of(self, number: int) -> Place:
        """Gives where an operation was issued that is not older than the last answer."""
        index = number - self._places_from
        return self._places[index] if 0 <= index < len(self._places) else ()

    def words_since_ack(self) -> tuple[int, array[int]]:
        """Gives the number of the first operation that is not answered for, and all words since."""
        words = array("I")
        for batch in self._batches:
            words.frombytes(batch)
        words.extend(self._words)
        return self._places_from, words

    def _send_batch(self) -> None:
        words, plans, values = self._words.tobytes(), self._plans, self._values
        numbers, self._numbers = self._numbers.tobytes(), array("d")
        # The same array goes on: the flusher looks at its length.
        del self._words[:]
        self._plans, self._values = [], []
        first, self._sent = self._sent, self._issued
        self._under_way.append((self._sent, self._send(first, words, numbers, plans, values)))
        self._batches.append(words)

    def _free(self) -> None:
        # Others may append meanwhile: only what is counted here is taken.
        count = len(self._freed)
        if self.recorder is not None:
            self.recorder.freed(self._freed[:count])
        if self.lanes:
            self._free_on_streams(self._freed[:count])
        else:
            for slot in self._freed[:count]:
                self._words.extend((FREE, slot))
                self.vacant.append(slot)
        del self._freed[:count]

    def _free_on_streams(self, slots: Sequence[int]) -> None:
        for slot in slots:
            lane = self.lanes.get(slot)
            if lane is None or lane.free is None:
                self._words.extend((FREE, slot))
            else:
                # In the order of its stream it is an operation as others are.
                self._words.extend((lane.free.number, slot))
                self._issued += 1
                self._places.append(())
            if lane is None:
                self.vacant.append(slot)
            else:
                lane.put_back(slot)

    def _collect(self) -> None:
        while self._under_way and self._under_way[0][1].done():
            self._collect_first()

    def _collect_first(self) -> None:
        upto, answer = self._under_way[0]
        try:
            ack = answer.get()
        except MeshError as error:
            self.fail(error)
            raise
        self._under_way.popleft()
        self._on_ack(ack)
        self._batches.popleft()
        for _ in range(upto - self._places_from):
            self._places.popleft()
        self._places_from = upto

    def _begin(self) -> None:
        """Has what comes now sent in a moment, also if nothing comes behind it."""
        if not self._lingers:
            return
        if self._flusher is None:
            self._flusher = threading.Thread(
                target=self._flush_what_lingers, name="mesh-tensor-flusher", daemon=True
            )
            self._flusher.start()
        self._filled.set()

    def _flush_what_lingers(self) -> None:
        while self._error is None:
            self._filled.wait()
            self._filled.clear()
            seen = -1
            # While more is coming, who fills the buffer sends it.
            while self._words and seen != self._issued:
                seen = self._issued
                time.sleep(_LINGER_S)
            if self._words:
                try:
                    self.flush()
                except BaseException:
                    # Whoever issues or fetches next is told.
                    return
