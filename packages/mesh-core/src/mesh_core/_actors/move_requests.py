"""Requests to a process whose host moves to another machine, on the old machine and the new one."""

from __future__ import annotations

from mesh_core._actors.freezing import (
    TakenStates,
    freeze_actors,
    release_states,
    take_states,
    thaw_actors,
    what_runs,
)
from mesh_core._actors.host_requests import LATER
from mesh_core._actors.restoring import RestoredStates
from mesh_core._errors import DrainFailed, Unpicklable
from mesh_core._runtime.late_reply import reply_from_thread
from mesh_core._serialization.wire import proc_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from typing_extensions import Buffer

    from mesh_core._actors.arrivals import Arrivals
    from mesh_core._core import Engine, Message
    from mesh_core._meshes.moved_state import ActorState, ClosedActor
    from mesh_core._runtime.runtime import Runtime

__all__ = ["MoveRequests"]


class MoveRequests:
    """The handlers of these requests; a part of `Agent`."""

    _runtime: Runtime
    _engine: Engine
    _arrivals: Arrivals
    _held: list[Message]
    _is_ending: bool
    _taken_states: TakenStates
    _restored_states: RestoredStates | None = None

    def do_move_activity(self, _message: Message, is_frozen: bool) -> tuple[int, str | None]:
        """Return the number of messages received, and the remaining activity, if any."""
        if is_frozen:
            self._engine.return_credit()
        busy = what_runs(self._runtime, must_be_frozen=is_frozen)
        received, is_quiet = self._engine.activity()
        if busy is None and (self._arrivals.loading is not None or self._held or self._is_ending):
            busy = f"process {proc_name(self._runtime.me)} starts or stops actors"
        if busy is None and not is_quiet:
            busy = f"messages of process {proc_name(self._runtime.me)} are in transit"
        return received, busy

    def do_move_freeze(self, _message: Message) -> None:
        """Make every actor wait between two messages, because the host moves."""
        freeze_actors(self._runtime)

    def do_move_thaw(self, _message: Message) -> None:
        """Let every actor continue, because the host does not move."""
        thaw_actors(self._runtime, self._taken_states)

    def do_move_states(self, message: Message) -> Any:
        """Reply with the states of the actors, without large parts, or why one cannot move."""

        def states() -> object:
            try:
                return (None, *take_states(self._runtime, self._taken_states))
            except (DrainFailed, Unpicklable) as error:
                return str(error), (), ()

        reply_from_thread(self._runtime, message, "mesh-states", states)
        return LATER

    def do_move_read(self, _message: Message, actor: int, part: int, start: int, end: int) -> Any:
        """Return the bytes in a range of a large part of an actor."""
        return self._taken_states.piece(actor, part, start, end)

    def do_move_release(self, _message: Message) -> None:
        """Drop the actors, whose states were handed over."""
        release_states(self._runtime)

    def do_move_prepare(
        self, _message: Message, actors: list[ActorState], closed: list[ClosedActor]
    ) -> None:
        """Prepare to continue the actors of this process on the previous machine of the host."""
        self._restored_states = RestoredStates(self._runtime, self._arrivals, actors, closed)

    def do_move_write(
        self, _message: Message, actor: int, part: int, start: int, piece: Buffer
    ) -> None:
        """Store the bytes of a large part of an actor from a position on."""
        assert self._restored_states is not None
        self._restored_states.put(actor, part, start, piece)

    def do_move_restore(self, message: Message) -> Any:
        """Continue the actors; reply when they run, with the reason if one cannot."""
        restored, self._restored_states = self._restored_states, None
        assert restored is not None
        reply_from_thread(self._runtime, message, "mesh-restore", restored.restore)
        return LATER
