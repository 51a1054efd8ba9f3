"""The exit of a process, and how it is described."""

import os
import signal
from typing import NamedTuple

from mesh_core._processes.messages import Exited

__all__ = ["ExitReport", "exit_report", "signal_name"]


class ExitReport(NamedTuple):
    """The exit of a process and its cause."""

    slot: int
    incarnation: int
    pid: int | None
    """None for a process that never started."""
    exit_code: int | None
    signal: int | None
    core_dumped: bool
    log_tail: tuple[str, ...]
    reason: str
    """One sentence for people."""
    why: str | None = None
    """Why it could not be started or set up, or why it was killed, if known."""


def exit_report(
    message: Exited,
    name: str,
    log_tail: tuple[str, ...],
    signal_sent: int | None,
    *,
    is_closing: bool,
) -> ExitReport:
    """Describe an exit that the supervisor has reported.

    Args:
        message: The report of the supervisor.
        name: The name of the process.
        log_tail: Its last lines.
        signal_sent: The last signal that was sent to it on request; None if there was none.
        is_closing: Whether the host is being closed.
    """
    code: int | None = None
    number: int | None = None
    core_dumped = False
    if message.pid is not None:
        if os.WIFSIGNALED(message.status):
            number = os.WTERMSIG(message.status)
            core_dumped = os.WCOREDUMP(message.status)
        else:
            code = os.WEXITSTATUS(message.status)
    return ExitReport(
        slot=message.slot,
        incarnation=message.incarnation,
        pid=message.pid,
        exit_code=code,
        signal=number,
        core_dumped=core_dumped,
        log_tail=log_tail,
        reason=_reason(message, name, code, number, core_dumped, signal_sent, is_closing),
        why=message.why,
    )


def _reason(
    message: Exited,
    name: str,
    code: int | None,
    number: int | None,
    core_dumped: bool,
    signal_sent: int | None,
    is_closing: bool,
) -> str:
    who = name if message.pid is None else f"{name} (pid {message.pid})"
    if message.pid is None or (message.why is not None and code is not None):
        return f"{who} could not start: {message.why}"
    if message.why is not None:
        return f"{who} was killed: {message.why}"
    if number is None:
        return f"{who} exited with status {code}"
    how = f"{who} was killed by {signal_name(number)}"
    if core_dumped:
        return f"{how} and left a core dump"
    if number == signal_sent:
        return f"{how}, as requested"
    if is_closing and number in (signal.SIGTERM, signal.SIGKILL):
        return f"{how} when the host was closed"
    if number == signal.SIGKILL:
        return f"{how} from outside, often by the kernel when memory runs out"
    return how


def signal_name(number: int) -> str:
    """Return the name of a signal, such as `SIGKILL`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
