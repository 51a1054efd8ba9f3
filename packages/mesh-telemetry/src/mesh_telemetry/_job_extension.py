"""Telemetry as an extension of a job: started when the job is attached, closed with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core import HostMesh

__all__ = ["RecordedJob"]


class RecordedJob:
    """The handle that `Job.add_extensions` of mesh-jobs keeps for telemetry.

    Args:
        close: Closes telemetry.
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close
        self._is_open = True

    def refresh(self) -> None:
        """Do nothing: telemetry needs no refresh."""

    def used(self, name: str, hosts: HostMesh) -> HostMesh:
        """Return the hosts unchanged."""
        return hosts

    def status(self) -> dict[str, Any]:
        """Return whether telemetry is recording."""
        return {"records": self._is_open}

    def close(self) -> None:
        """Stop recording and discard all rows."""
        self._is_open = False
        self._close()
