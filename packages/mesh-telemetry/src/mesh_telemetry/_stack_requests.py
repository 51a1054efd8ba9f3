"""Stacks of all processes: what is asked of each host, and what comes back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mesh_core import MeshError
from mesh_telemetry._errors import StorageError, TelemetryError
from mesh_telemetry._keeper import cause_of

if TYPE_CHECKING:
    from mesh_telemetry._host_rows import HostRows
    from mesh_telemetry._keeper import HostHandle, Keeper

__all__ = ["store_dump_of"]


def store_dump_of(keeper: Keeper, dump_id: str, proc: str, said: str, timeout_s: float) -> None:
    """Has the host of a process keep a dump; that of the program for one that is not known.

    Raises:
        TelemetryError: It is no dump, or the host does not answer.
        StorageError: There is no room for it.
    """
    deadline = time.monotonic() + timeout_s
    hosts = keeper.hosts.call_one().get(timeout_s)
    at, _, _ = proc.partition(".")
    host = next((one for one in hosts if str(one.number) == at), hosts[0])
    storing = _rows_of(host).store_pyspy_dump.call_one(dump_id, proc, said)
    try:
        storing.get(max(deadline - time.monotonic(), 0.0))
    except TimeoutError:
        storing.cancel()
        raise TelemetryError(f"host {host.name} has not answered in {timeout_s:g} s") from None
    except StorageError as error:
        raise StorageError(cause_of(error)) from None
    except MeshError as error:
        raise TelemetryError(cause_of(error)) from None


def _rows_of(host: HostHandle) -> HostRows:
    if host.rows is None:
        cause = host.error or "it is being started again"
        raise TelemetryError(f"host {host.name} does not answer ({cause}): try again later")
    return host.rows
