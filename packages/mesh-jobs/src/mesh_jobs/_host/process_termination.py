"""Termination of a process of a host, with SIGTERM first and SIGKILL after a grace period."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from dataclasses import dataclass

from mesh_jobs._host.processes import HostProcess

__all__ = ["Termination", "terminate_process"]

_KILL_LIMIT_S = 10.0
_LOOK_MS = 250


@dataclass(frozen=True, slots=True)
class Termination:
    """How a process terminated.

    Attributes:
        is_killed: Whether SIGKILL was needed.
        took_s: How long it took, in seconds.
    """

    is_killed: bool
    took_s: float


def terminate_process(
    process: HostProcess, grace_s: float, kill_now: threading.Event
) -> Termination | None:
    """Terminate a process and wait for its exit; return None if it had exited before.

    Args:
        process: The process; a new process with a reused pid is not signalled.
        grace_s: Seconds between SIGTERM and SIGKILL; 0 sends SIGKILL at once.
        kill_now: When set, the grace period ends at once.

    Raises:
        PermissionError: The process belongs to another user.
        TimeoutError: The process does not exit after SIGKILL, for example in uninterruptible sleep.
    """
    began = time.monotonic()
    try:
        held = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    try:
        if _started(process.pid) != process.ticks:
            return None
        is_ended = False
        if grace_s > 0:
            signal.pidfd_send_signal(held, signal.SIGTERM)
            is_ended = _has_ended(held, grace_s, kill_now)
        if not is_ended:
            signal.pidfd_send_signal(held, signal.SIGKILL)
            if not _has_ended(held, _KILL_LIMIT_S, kill_now):
                raise TimeoutError(f"process {process.pid} was killed but has not exited")
        return Termination(not is_ended, time.monotonic() - began)
    except ProcessLookupError:
        return Termination(False, time.monotonic() - began)
    finally:
        os.close(held)


def _has_ended(held: int, limit_s: float, kill_now: threading.Event) -> bool:
    poll = select.poll()
    poll.register(held, select.POLLIN)
    deadline = time.monotonic() + limit_s
    while not poll.poll(_LOOK_MS):
        if kill_now.is_set() or time.monotonic() >= deadline:
            return bool(poll.poll(0))
    return True


def _started(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            content = file.read()
    except OSError:
        return None
    return int(content[content.rfind(b")") + 2 :].split()[19])
