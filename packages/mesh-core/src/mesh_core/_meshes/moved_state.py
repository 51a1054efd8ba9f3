"""The state of the processes of a host that moves to another machine, as it travels."""

from __future__ import annotations

from pickle import PickleBuffer
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from mesh_core._meshes.start_request import StartRequest

    ActorState = tuple[int, int, int, bytes, Sequence[Any]]
    """Port, rank and window of an actor, and the body and the buffers of its spawn request."""
    ClosedActor = tuple[int, int, bytes]
    """The port of an actor that has ended, and the code and the detail for its callers."""

__all__ = ["ProcState"]


class ProcState(NamedTuple):
    """One process with its actors."""

    slot: int
    """The slot of the process on its host."""
    request: StartRequest
    """The request that started its mesh."""
    actors: Sequence[ActorState]
    """The actors, in the order in which they were spawned."""
    closed: Sequence[ClosedActor]
    """The actors that have ended."""

    def sendable(self) -> ProcState:
        """Return the state with buffers that can be sent, if it was received from elsewhere."""
        actors = [
            (port, rank, window, body, [PickleBuffer(buffer) for buffer in buffers])
            for port, rank, window, body, buffers in self.actors
        ]
        return self._replace(actors=actors)
