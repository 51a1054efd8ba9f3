"""Why processes of a host do not reply, as far as the host knows."""

from __future__ import annotations

import time

from mesh_core._processes.exit_report import signal_name
from mesh_core._system import kernel as _kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from mesh_core._hosts.slot import Slot
    from mesh_core._processes.local_host import LocalHost

__all__ = ["describe_silence"]


def describe_silence(
    host_name: str, local_host: LocalHost, slots: Mapping[int, Slot], number: int
) -> tuple[str, str]:
    """Return which process a slot has, and why it does not reply, as parts of a sentence.

    Args:
        host_name: The name of the host.
        local_host: The host.
        slots: All slots of the host.
        number: The number of the slot; 0 for the agent itself.
    """
    if number == 0:
        return f"host {host_name}", _what_agent_awaits(host_name, local_host, slots)
    pid, slot = local_host.pid(number), slots.get(number)
    if pid is None or slot is None:
        return f"on {host_name}", f"has not started{_why_not_started(local_host)}"
    why = _why_silent(local_host, number, pid, slot)
    return f"pid {pid} on {host_name}", f"has not replied{why}"


def _what_agent_awaits(host_name: str, local_host: LocalHost, slots: Mapping[int, Slot]) -> str:
    """Describe the processes of the host that should have exited but are still alive."""
    ending = [number for number, slot in slots.items() if slot.is_alive and slot.is_stopping]
    if not ending:
        return "has not replied"
    who, what = describe_silence(host_name, local_host, slots, ending[0])
    more = f", and {len(ending) - 1} more" if len(ending) > 1 else ""
    return f"waits for {len(ending)} processes to exit: {who} {what}{more}"


def _why_silent(local_host: LocalHost, number: int, pid: int, slot: Slot) -> str:
    stop = local_host.stop_of(number)
    if stop is not None:
        stopped_s = time.monotonic() - stop.since
        return f"; it has been stopped by {signal_name(stop.signal)} for {stopped_s:.0f} s"
    if _kernel.state_of(pid) == "t":
        return "; a debugger has stopped it"
    if slot.unreachable_s:
        return f"; it has had no connections for {slot.unreachable_s:.0f} s"
    return ""


def _why_not_started(local_host: LocalHost) -> str:
    supervisor = local_host.stopped_supervisor()
    if supervisor is None:
        return ""
    pid, stopped_s = supervisor
    who = f"its process supervisor (pid {pid})"
    return f"; {who} has been stopped by a signal for {stopped_s:.0f} s"
