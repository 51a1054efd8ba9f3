"""What the errors and events of a process that has exited say about it."""

from __future__ import annotations

from mesh_core._processes.exit_report import signal_name
from mesh_core._serialization.wire import proc_id, proc_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._hosts.slot import Slot
    from mesh_core._processes.exit_report import ExitReport
    from mesh_core._runtime.identity import Identity

__all__ = ["describe_exit", "exit_fields"]


def exit_fields(identity: Identity, slot: Slot, report: ExitReport) -> dict[str, Any]:
    """Return the fields of `ProcDied` for a process of this host.

    Args:
        identity: The identity of the agent of the host.
        slot: The slot of the process.
        report: How the process has exited.
    """
    return {
        "mesh_name": slot.request.table.name,
        "rank": slot.rank,
        "point": dict(slot.point),
        "host": identity.host_name,
        "proc": proc_name(proc_id(identity.host, report.slot)),
        "pid": report.pid,
        "exit_code": report.exit_code,
        "signal": report.signal,
        "log_tail": report.log_tail,
        "reason": slot.why_ended or _reason(report),
    }


def describe_exit(report: ExitReport) -> str:
    """Describe how a process has exited in a few words."""
    if report.signal is not None:
        return f"its process was killed by {signal_name(report.signal)}"
    return f"its process exited with status {report.exit_code}"


def _reason(report: ExitReport) -> str | None:
    """Return why a process is gone if neither its status nor its signal explains it."""
    if report.why is not None and report.exit_code is not None:
        return f"it could not start: {report.why}"
    if report.why is not None and report.signal is not None:
        return report.why
    return report.reason if report.exit_code is None and report.signal is None else None
