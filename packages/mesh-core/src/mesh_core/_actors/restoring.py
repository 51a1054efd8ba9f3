"""A process that continues the actors of a process on the previous machine of its host."""

from __future__ import annotations

from mesh_core._core import Targets
from mesh_core._serialization.remote_error import decode_exception
from mesh_core._serialization.wire import SPAWN
from mesh_core._system.memory import new_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from mesh_core._actors.arrivals import Arrivals
    from mesh_core._meshes.moved_state import ActorState, ClosedActor
    from mesh_core._runtime.runtime import Runtime

__all__ = ["RestoredStates"]

_WINDOW = 1 << 31


class RestoredStates:
    """The states of the actors that continue in this process, while they arrive in pieces.

    Args:
        runtime: This process.
        arrivals: Starts the actors.
        actors: The actors, in the order in which they were spawned.
        closed: The actors that have ended.
    """

    def __init__(
        self,
        runtime: Runtime,
        arrivals: Arrivals,
        actors: Sequence[ActorState],
        closed: Sequence[ClosedActor],
    ) -> None:
        self._runtime = runtime
        self._arrivals = arrivals
        self._actors = actors
        # Arrays refer to this memory without a copy, so it is aligned like their own.
        self._parts = [[new_memory(size) for size in actor.sizes] for actor in actors]
        for port, code, detail in closed:
            runtime.engine.open_mailbox(port, 1)
            runtime.engine.close_mailbox(port, code, detail)

    def put(self, actor: int, part: int, start: int, piece: Buffer) -> None:
        """Store the bytes of a part of an actor from a position on."""
        data = memoryview(piece).cast("B")
        self._parts[actor][part][start : start + data.nbytes] = data

    def restore(self) -> str | None:
        """Start the actors, and wait until they run; return the reason if one cannot run."""
        engine = self._runtime.engine
        replies: list[int] = []
        for actor, parts in zip(self._actors, self._parts, strict=True):
            self._arrivals.moved_parts[actor.port] = parts
            targets = Targets([(self._runtime.me, actor.rank)])
            window = actor.window.to_bytes(4, "little")
            replies.append(
                engine.call(SPAWN, targets, actor.port, window, actor.body, [], _WINDOW, None, None)
            )
        self._parts = []
        problem: str | None = None
        for reply in replies:
            answers = engine.wait(reply, None)
            if answers[0].code:
                problem = problem or str(decode_exception(answers[0].body))
        return problem
