"""The replayed actor in its process: it has a class, a record, and no mailbox."""

from __future__ import annotations

from typing import Any

from mesh_core._actors.cell import ActorCell
from mesh_core._runtime.serving import Serving, set_serving

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio

    from mesh_core._actors.cell import Plan
    from mesh_core._cases.case import Entry
    from mesh_core._meshes.spawn_request import SpawnRequest
    from mesh_core._replay.record import Record
    from mesh_core._runtime.runtime import Runtime

__all__ = ["ReplayCell"]


class ReplayCell(ActorCell):
    """One actor that is replayed."""

    def __init__(
        self, runtime: Runtime, port: int, rank: int, request: SpawnRequest, record: Record
    ) -> None:
        super().__init__(runtime, port, rank, request)
        self.record: Record = record
        self.reader = record

    def begin(self, entry: Entry) -> tuple[int, Plan, tuple[Any, ...], dict[str, Any]]:
        """Set the context of a message, and return its number, endpoint and arguments."""
        number = entry.fields["n"]
        message: Any = self.record.message(entry)
        plan = self.plan(message.meta)
        current = Serving(self, message, plan.extent)
        current.number = number
        set_serving(current)
        args, kwargs = self.arguments(message, plan)
        return number, plan, args, kwargs

    def channel_number(self, port: int) -> int:
        """Report to the engine the channel that the actor opens."""
        number = super().channel_number(port)
        engine: Any = self.engine
        engine.opened(port, number)
        return number

    def is_held_by(self, current: Serving) -> bool:
        """Return False: a replay does not search for deadlocks."""
        return False

    def is_exclusive(self, current: Serving) -> bool:
        """Return False: see `is_held_by`."""
        return False

    def task_of(self, call: tuple[int, int] | None, is_exclusive: bool) -> asyncio.Task[Any] | None:
        """Return no task: see `is_held_by`."""
        return None
