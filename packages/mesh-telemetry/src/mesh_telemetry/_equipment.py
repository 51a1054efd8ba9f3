"""Telemetry with a job: started when the program has attached to the hosts, closed with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core import HostMesh

__all__ = ["RecordedJob"]


class RecordedJob:
    """What `Job.equip` of mesh-jobs holds of telemetry.

    Args:
        close: Ends it.
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close
        self._is_open = True

    def refresh(self) -> None:
        """It is live."""

    def used(self, name: str, hosts: HostMesh) -> HostMesh:
        """Gives the hosts as they are."""
        return hosts

    def status(self) -> dict[str, Any]:
        """Says whether it records."""
        return {"records": self._is_open}

    def close(self) -> None:
        """Records nothing more, and forgets all rows."""
        self._is_open = False
        self._close()
