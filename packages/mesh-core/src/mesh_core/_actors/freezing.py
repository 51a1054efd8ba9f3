"""A process whose host moves to another machine: actors freeze between two messages.

The agent of the host requests each of these steps: see `mesh_core._hosts.hand_over`.
"""

from __future__ import annotations

from pickle import PickleBuffer

from mesh_core._calls.port_transit import note_ports, recall_ports
from mesh_core._errors import DrainFailed, Unpicklable
from mesh_core._meshes.mesh_entry import MeshEntry
from mesh_core._meshes.moved_state import ActorState, ClosedActor
from mesh_core._meshes.spawn_request import SpawnRequest
from mesh_core._serialization.pickler import encode_value
from mesh_core._serialization.wire import proc_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core._actors.cell import ActorCell
    from mesh_core._runtime.runtime import Runtime

__all__ = [
    "TakenStates",
    "freeze_actors",
    "release_states",
    "take_states",
    "thaw_actors",
    "what_runs",
]


class TakenStates:
    """The pickled states of the actors of this process until the outcome of the move is known."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self._parts: list[list[memoryview]] = []

    def add(self, body: bytes, parts: list[memoryview]) -> None:
        """Add the state of an actor: the pickle, and its large parts, which are not copied."""
        self.bodies.append(body)
        self._parts.append(parts)

    def piece(self, actor: int, part: int, start: int, end: int) -> PickleBuffer:
        """Return the bytes in a range of a part of an actor."""
        return PickleBuffer(self._parts[actor][part][start:end])

    def clear(self) -> None:
        """Drop everything."""
        self.bodies.clear()
        self._parts.clear()


def freeze_actors(runtime: Runtime) -> None:
    """Request that every actor wait, after it has served the messages that are queued now."""
    for cell in _living(runtime):
        cell.freeze()


def thaw_actors(runtime: Runtime, taken: TakenStates) -> None:
    """Let every actor continue; none of the states that were taken will be used."""
    for body in taken.bodies:
        recall_ports(body, [(runtime.me, 0)])
    taken.clear()
    for cell in _living(runtime):
        cell.thaw()


def what_runs(runtime: Runtime, *, must_be_frozen: bool) -> str | None:
    """Describe an activity of the actors of this process; None if all of them are idle.

    Args:
        runtime: This process.
        must_be_frozen: Whether an actor that waits for messages counts as active.
    """
    for cell in _living(runtime):
        if cell.ending.is_begun.is_set():
            return f"the actor {cell.name} (rank {cell.rank}) is stopping"
        if cell.running_messages():
            return f"the actor {cell.name} (rank {cell.rank}) runs {cell.running_name}"
        if must_be_frozen and not cell.is_frozen:
            return f"the actor {cell.name} (rank {cell.rank}) has not stopped between two messages"
    if runtime.ownership.is_handling_failures():
        return f"a failure of a mesh of process {proc_name(runtime.me)} is being handled"
    waits = runtime.engine.waits()
    if waits:
        return f"a call of process {proc_name(runtime.me)} to {proc_name(waits[0][1])} is pending"
    return None


def take_states(runtime: Runtime, taken: TakenStates) -> tuple[list[ActorState], list[ClosedActor]]:
    """Pickle every frozen actor; return the states, and why other actors accept no messages.

    Args:
        runtime: This process.
        taken: Gets the states.

    Raises:
        DrainFailed: An actor is recorded.
        Unpicklable: The state of an actor cannot be pickled.
    """
    states: list[ActorState] = []
    for cell in _living(runtime):
        _check_movable(cell)
        request = cell.request
        moved = SpawnRequest(
            request.cls,
            (),
            {},
            request.name,
            request.table,
            request.region,
            request.owner,
            request.owner_name,
            request.window,
            cell.instance,
            tuple(
                MeshEntry(mesh, runtime.ownership.policy_of(mesh), runtime)
                for mesh in runtime.ownership.children_of(cell.port)
            ),
        )
        try:
            body, buffers = encode_value(moved, cell.threshold)
        except Unpicklable:
            # This error names the path of the unpicklable object, starting at the actor.
            encode_value(cell.instance, cell.threshold, f"the actor {cell.name}")
            raise
        # Its ports are in transit until the actor has them again.
        note_ports(body, [(runtime.me, 0)])
        taken.add(body, buffers)
        sizes = [buffer.nbytes for buffer in buffers]
        states.append(ActorState(cell.port, cell.rank, request.window, body, sizes))
    closed: list[ClosedActor] = []
    for cell in list(runtime.actors.values()):
        reason = cell.ending.closed_with() if cell.is_ended else None
        if reason is not None:
            closed.append(ClosedActor(cell.port, *reason))
    return states, closed


def release_states(runtime: Runtime) -> None:
    """Drop the actors, which continue elsewhere; this process then holds none of their ports."""
    for cell in _living(runtime):
        cell.instance = None


def _check_movable(cell: ActorCell) -> None:
    if cell.recording is not None:
        who = f"the actor {cell.name} (rank {cell.rank})"
        raise DrainFailed(f"{who} is recorded, and recorded actors cannot be moved")


def _living(runtime: Runtime) -> Iterator[ActorCell]:
    return (cell for cell in list(runtime.actors.values()) if not cell.is_ended)
