"""The replayed actor in its process: it has a class, a record, and no mailbox."""

from __future__ import annotations

from mesh_core._actors.cell import ActorCell
from mesh_core._runtime.serving import serving

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from typing import Any

    from mesh_core._meshes.spawn_request import SpawnRequest
    from mesh_core._replay.record import Record
    from mesh_core._runtime.runtime import Runtime
    from mesh_core._runtime.serving import Serving

__all__ = ["ReplayCell"]


class _Reader:
    """Returns what the recorded actor read from its context."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def read(self, number: int, source: str, key: str, _produce: Callable[[], Any]) -> Any:
        """Return the recorded value."""
        return self._record.read(number, source, key)


class ReplayCell(ActorCell):
    """One actor that is replayed."""

    def __init__(
        self, runtime: Runtime, port: int, rank: int, request: SpawnRequest, record: Record
    ) -> None:
        super().__init__(runtime, port, rank, request)
        self.reader: Any = _Reader(record)

    def is_held_by(self, current: Serving) -> bool:
        """Return False: a replay has no deadlocks to look for."""
        return False

    def is_exclusive(self, current: Serving) -> bool:
        """Return False, for the same reason."""
        return False

    def task_of(self, call: tuple[int, int] | None, is_exclusive: bool) -> asyncio.Task[Any] | None:
        """Return no task, for the same reason."""
        return None

    @property
    def number(self) -> int:
        """The number of the message that the current thread or task serves."""
        current = serving()
        return 0 if current is None else current.number
