"""Cancellation of batch jobs, including the wait for their end."""

from __future__ import annotations

import time
from collections.abc import Callable

from mesh_jobs._slurm.commands import Slurm

__all__ = ["cancel_jobs"]

#: The time limit for the end of the jobs; after that, the scheduler completes the cancellation.
_END_LIMIT_S = 120.0

_PAUSE_S = 0.05
_PAUSE_MAX_S = 1.0


def cancel_jobs(is_selected: Callable[[str, str], bool]) -> None:
    """Cancel jobs of this user, and wait until no node runs them.

    Args:
        is_selected: A function of the id and the name of a job, which returns whether to cancel it.

    Raises:
        SchedulerUnreachable: The scheduler cannot be reached.
        JobError: The scheduler rejected the request.
    """
    slurm = Slurm()
    until = time.monotonic() + _END_LIMIT_S
    pause_s = _PAUSE_S
    cancelled: set[str] = set()
    while left := {job_id for job_id, name in slurm.own_jobs() if is_selected(job_id, name)}:
        if new := sorted(left - cancelled):
            slurm.cancel(new)
        cancelled |= left
        if time.monotonic() > until:
            return
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _PAUSE_MAX_S)
