"""Terminates one process of a host, first with SIGTERM and then with SIGKILL."""

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
    """How a process has ended.

    Attributes:
        is_killed: Whether it had to be killed.
        took_s: How long it took.
    """

    is_killed: bool
    took_s: float


def terminate_process(
    process: HostProcess, grace_s: float, hurry: threading.Event
) -> Termination | None:
    """Ends a process, and returns when it has ended; None when it had ended before.

    Args:
        process: Which; another that has its number by now is left alone.
        grace_s: How long it may take in good order.
        hurry: Once this is set, it has no time any more.

    Raises:
        PermissionError: It is another user's.
        TimeoutError: It does not end although it was killed, as when it waits for a disk.
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
            is_ended = _has_ended(held, grace_s, hurry)
        if not is_ended:
            signal.pidfd_send_signal(held, signal.SIGKILL)
            if not _has_ended(held, _KILL_LIMIT_S, hurry):
                raise TimeoutError(f"process {process.pid} was killed and does not end")
        return Termination(not is_ended, time.monotonic() - began)
    except ProcessLookupError:
        return Termination(False, time.monotonic() - began)
    finally:
        os.close(held)


def _has_ended(held: int, limit_s: float, hurry: threading.Event) -> bool:
    poll = select.poll()
    poll.register(held, select.POLLIN)
    deadline = time.monotonic() + limit_s
    while not poll.poll(_LOOK_MS):
        if hurry.is_set() or time.monotonic() >= deadline:
            return bool(poll.poll(0))
    return True


def _started(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            content = file.read()
    except OSError:
        return None
    return int(content[content.rfind(b")") + 2 :].split()[19])
