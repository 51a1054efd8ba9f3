"""Transfer of the large parts of a moving host's state through the program.

Both machines have the same number in the job, so they cannot address each other: the program reads
everything from the old machine before the new one replaces it, and writes it after that. It reads
and writes in pieces, and keeps several requests in flight.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import zip_longest
from pickle import PickleBuffer

from mesh_core._core import Targets
from mesh_core._errors import DrainFailed, HostDied
from mesh_core._runtime.runtime import value_of
from mesh_core._serialization.wire import HOST_DIED, proc_id, proc_name
from mesh_core._system.memory import available_bytes, new_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, TypeVar

    from mesh_core._core import Message
    from mesh_core._meshes.moved_state import ProcState
    from mesh_core._runtime.runtime import Runtime

    T = TypeVar("T")

__all__ = ["StateTransfer"]

_PIECE_BYTES = 4 << 20
_PIECES_UNDER_WAY = 4


class StateTransfer:
    """The state of the processes of a host.

    Args:
        runtime: The program.
        host: The number of the host.
        name: The name of the old machine.
        states: The processes, without the large parts of their actors.

    Raises:
        DrainFailed: The machine of the program has too little memory for the large parts.
    """

    def __init__(self, runtime: Runtime, host: int, name: str, states: Sequence[ProcState]) -> None:
        self._runtime = runtime
        self._host = host
        self._name = name
        self._states = states
        needed = sum(size for state in states for actor in state.actors for size in actor.sizes)
        if needed > available_bytes():
            raise DrainFailed(
                f"its state of {needed >> 20} MiB passes through the program, whose machine has "
                f"{available_bytes() >> 20} MiB of memory available"
            )
        # By process, actor and part.
        self._parts = {
            (state.slot, actor, part): new_memory(size)
            for state in states
            for actor, one in enumerate(state.actors)
            for part, size in enumerate(one.sizes)
        }

    def read(self, until: float) -> None:
        """Read the large parts from the old machine.

        Args:
            until: The deadline, as a time of the monotonic clock.

        Raises:
            DrainFailed: The time is over, or a process has died.
            HostDied: The old machine has died.
        """
        for slot, reply, piece in _under_way(self._reads(until)):
            self._take(slot, reply, piece)

    def write(self) -> None:
        """Write everything to the processes on the new machine, and wait until they continue.

        A process whose actors cannot be restored is killed, and its owner handles that as any other
        death.
        """
        for state in self._states:
            proc = proc_id(self._host, state.slot)
            self._runtime.tell_agent(proc, "move_prepare", state.actors, state.closed)
        for reply in _under_way(self._writes()):
            self._wait(reply)
        self._parts.clear()
        replies = [(state.slot, self._call(state.slot, "move_restore")) for state in self._states]
        for slot, reply in replies:
            answer = self._wait(reply)
            # A process that has died is reported by its host.
            problem = None if answer.code else value_of(answer)
            if problem is not None:
                why = f"the state of an actor could not be restored: {problem}"
                self._runtime.tell_agent(proc_id(self._host, 0), "move_failed", slot, why)

    def _reads(self, until: float) -> Iterator[tuple[int, int, memoryview]]:
        """Request each piece; yield its process, the port of the reply, and where it belongs."""
        for slot, actor, part, start, piece in self._pieces():
            if time.monotonic() > until:
                raise DrainFailed("its state was not read in time: drain it with a longer timeout")
            reply = self._call(slot, "move_read", actor, part, start, start + piece.nbytes)
            yield slot, reply, piece

    def _writes(self) -> Iterator[int]:
        """Send each piece; yield the port of the reply."""
        for slot, actor, part, start, piece in self._pieces():
            yield self._call(slot, "move_write", actor, part, start, PickleBuffer(piece))

    def _pieces(self) -> Iterator[tuple[int, int, int, int, memoryview]]:
        """Yield process, actor, part and position of each piece, alternating between processes."""
        of_slots: dict[int, list[tuple[int, int, int, int, memoryview]]] = {}
        for (slot, actor, part), memory in self._parts.items():
            for start in range(0, memory.nbytes, _PIECE_BYTES):
                piece = memory[start : start + _PIECE_BYTES]
                of_slots.setdefault(slot, []).append((slot, actor, part, start, piece))
        for pieces in zip_longest(*of_slots.values()):
            yield from (piece for piece in pieces if piece is not None)

    def _take(self, slot: int, reply: int, piece: memoryview) -> None:
        answer = self._wait(reply)
        if answer.code == HOST_DIED:
            raise HostDied(host=self._name, reason="it died while its state was read")
        if answer.code:
            raise DrainFailed(f"process {proc_name(proc_id(self._host, slot))} has died")
        piece[:] = memoryview(value_of(answer)).cast("B")

    def _call(self, slot: int, method: str, *args: Any) -> int:
        targets = Targets([(proc_id(self._host, slot), 0)])
        return self._runtime.call_agents(targets, method, *args)

    def _wait(self, reply: int) -> Message:
        return self._runtime.engine.wait(reply, None)[0]


def _under_way(calls: Iterator[T]) -> Iterator[T]:
    """Yield calls in order, each when some more have been made, and the last ones at the end."""
    made: deque[T] = deque()
    for call in calls:
        made.append(call)
        if len(made) == _PIECES_UNDER_WAY:
            yield made.popleft()
    yield from made
