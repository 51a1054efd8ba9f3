"""Batch jobs are ended, and that is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable

from mesh_jobs._slurm.commands import Slurm

__all__ = ["end_jobs"]

#: How long jobs may take to end; what then still runs is the scheduler's to end.
_END_LIMIT_S = 120.0

_PAUSE_S = 0.05
_PAUSE_MAX_S = 1.0


def end_jobs(is_meant: Callable[[str, str], bool]) -> None:
    """Ends jobs of this user, and returns when they are gone from all nodes.

    Args:
        is_meant: Whether a job is one of them, by its id and its name.

    Raises:
        SchedulerUnreachable: The scheduler cannot be asked.
        JobError: It refuses.
    """
    slurm = Slurm()
    until = time.monotonic() + _END_LIMIT_S
    pause_s = _PAUSE_S
    asked: set[str] = set()
    while left := {job_id for job_id, name in slurm.own_jobs() if is_meant(job_id, name)}:
        if new := sorted(left - asked):
            slurm.cancel(new)
        asked |= left
        if time.monotonic() > until:
            return
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _PAUSE_MAX_S)
