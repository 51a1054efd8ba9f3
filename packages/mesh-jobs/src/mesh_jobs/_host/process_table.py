"""The processes of this machine, as listed by the kernel."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from mesh_jobs._errors import JobError

__all__ = ["Process", "command_of", "end_all", "processes"]

_PAUSE_S = 0.02
_KILL_S = 10.0


@dataclass(frozen=True)
class Process:
    """A process.

    Attributes:
        pid: The process id.
        parent: The pid of the parent.
        session: The id of its session, which its children inherit.
        started: The start time in ticks since boot, which distinguishes processes with a reused
            pid.
    """

    pid: int
    parent: int
    session: int
    started: int


def processes() -> Iterator[Process]:
    """Iterate over all running processes; zombies are omitted."""
    for name in os.listdir("/proc"):
        if name.isdecimal() and (one := _read(int(name))) is not None:
            yield one


def command_of(pid: int) -> list[str]:
    """Return the command line of a process; empty if the process has exited or is not readable."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            content = file.read()
    except OSError:
        return []
    return [os.fsdecode(word) for word in content.split(b"\0")[:-1]]


def end_all(chosen: Iterable[Process], grace_s: float) -> None:
    """Terminate processes and their sessions, with SIGTERM first and SIGKILL after a grace period.

    Args:
        chosen: The processes; each is the leader of its session.
        grace_s: The grace period in seconds.

    Raises:
        JobError: A process cannot be terminated, for example because it waits for a disk that does
            not respond.
    """
    leaders = list(chosen)
    for leader in leaders:
        _send(leader, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while any(map(_is_running, leaders)) and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
    sessions = {leader.pid for leader in leaders}
    deadline = time.monotonic() + _KILL_S
    # The loop repeats because a process may start another one while it is being killed.
    while left := [one for one in processes() if one.session in sessions]:
        if time.monotonic() > deadline:
            pids = ", ".join(str(one.pid) for one in left)
            raise JobError(
                f"processes {pids} have not exited: check what blocks them, and kill again"
            )
        for one in left:
            _send(one, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def _is_running(process: Process) -> bool:
    now = _read(process.pid)
    return now is not None and now.started == process.started


def _send(process: Process, number: signal.Signals) -> None:
    if _is_running(process):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def _read(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            content = file.read()
    except OSError:
        return None
    # The process name is in parentheses and may contain any byte, so parsing starts after the last
    # one.
    fields = content[content.rfind(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]))
