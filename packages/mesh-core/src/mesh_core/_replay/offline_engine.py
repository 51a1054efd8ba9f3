"""The common part of all engines that run recorded actors without their cluster."""

from __future__ import annotations

from typing import Any

from mesh_core._replay.errors import NotReplayable
from mesh_core._runtime.open_message import OpenMessage
from mesh_core._serialization.wire import AGENT, CALL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._core import Engine

__all__ = ["OfflineEngine"]


class OfflineEngine:
    """An engine whose calls reach no other process.

    Methods that it does not have are passed on to an engine of the core that has no connections.

    Args:
        engine: That engine, which creates ports.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def _agent_replies(
        self, kind: int, port: int, meta: bytes, count: int
    ) -> list[OpenMessage] | None:
        """Return the replies to a request to agents; None if it is a call of actors.

        Raises:
            NotReplayable: It is a reduction.
        """
        if port == AGENT and meta == b"reduce":
            raise NotReplayable("reductions that an actor starts are not recorded")
        if kind == CALL and port != AGENT:
            return None
        # Other processes are neither started nor stopped: such requests succeed.
        return [OpenMessage(body=b"\x80\x05N.", opened=[], rank=rank) for rank in range(count)]

    def guard(self, _port: int) -> None:
        """Return None: a call needs no guard here."""

    def forget(self, _port: int) -> None:
        """Ignore that the caller has abandoned a call."""

    def notify(self, _port: int, _queue: object) -> None:
        """Do nothing: the loop is woken when a reply is delivered."""

    def waits(self) -> list[tuple[int, int, int]]:
        """Return no waits: deadlocks are found in another way."""
        return []
