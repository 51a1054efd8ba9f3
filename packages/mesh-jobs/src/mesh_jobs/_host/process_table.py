"""The processes of this machine, as the kernel lists them."""

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
    """One process.

    Attributes:
        pid: Its number.
        parent: That of the one that it reports to.
        session: That of the session it belongs to, which its children inherit.
        started: When it started, in ticks since boot: a pid that was used again has another.
    """

    pid: int
    parent: int
    session: int
    started: int


def processes() -> Iterator[Process]:
    """Gives all that run now; those that have ended and wait to be reaped are none."""
    for name in os.listdir("/proc"):
        if name.isdecimal() and (one := _read(int(name))) is not None:
            yield one


def command_of(pid: int) -> list[str]:
    """Gives the command line of a process; nothing when it is gone or another user's secret."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            content = file.read()
    except OSError:
        return []
    return [os.fsdecode(word) for word in content.split(b"\0")[:-1]]


def end_all(chosen: Iterable[Process], grace_s: float) -> None:
    """Ends processes and all of their sessions: in good order, and by force after a while.

    Args:
        chosen: Leaders of their sessions.
        grace_s: How long they may take.

    Raises:
        JobError: Some cannot be ended, as when they wait for a disk that does not answer.
    """
    leaders = list(chosen)
    for leader in leaders:
        _send(leader, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while any(map(_is_running, leaders)) and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
    sessions = {leader.pid for leader in leaders}
    deadline = time.monotonic() + _KILL_S
    # Again and again: a process may start another while it is being killed.
    while left := [one for one in processes() if one.session in sessions]:
        if time.monotonic() > deadline:
            pids = ", ".join(str(one.pid) for one in left)
            raise JobError(f"processes {pids} do not end: look what holds them, and kill again")
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
    # The name stands in brackets and may hold any byte: what is wanted comes after it.
    fields = content[content.rfind(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]))
