"""The telemetry process of a host, as other components see it."""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_telemetry._hosts.host_rows import HostRows

__all__ = ["HostHandle"]


class HostHandle(NamedTuple):
    """The telemetry process of one host.

    If the process was lost, `error` is set instead of `rows`.
    """

    number: int
    """The number of the host in the job."""
    name: str
    """The host name of the machine; `host <number>` if it was never reported."""
    rows: HostRows | None
    error: str | None
