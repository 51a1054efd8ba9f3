"""Functions that wait until the status of a job satisfies a condition."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from mesh_jobs._backend.backend import Backend
from mesh_jobs._backend.follower import Follower, Polling
from mesh_jobs._backend.report import Allocation, Phase, Report
from mesh_jobs._errors import JobEnded, JobPending, NotSupported, SchedulerUnreachable
from mesh_jobs._job.status import JobStatus

__all__ = ["Progress", "ended_error", "has_ended", "is_up_or_over", "wait_for_status"]

_FIRST_POLL_S = 0.02
_POLL_SHARE = 0.1
_LOG_LINES = 20
_LOGS_SHOWN_MAX = 4

Progress = Callable[[JobStatus], None]


def wait_for_status(
    backend: Backend,
    allocation: Allocation,
    status_of: Callable[[Report], JobStatus],
    condition: Callable[[JobStatus], bool],
    *,
    timeout: float | None,
    progress: Progress | None,
) -> JobStatus:
    """Wait until a condition holds, and return the status that satisfies it.

    Args:
        backend: The backend of the job.
        allocation: The allocation.
        status_of: Creates the status of the job from a report.
        condition: The condition.
        timeout: The timeout in seconds; None waits without a limit.
        progress: A function that is called with each new status.

    Raises:
        JobPending: The condition did not hold before the timeout.
        SchedulerUnreachable: The scheduler could not be reached at the end of the timeout.
    """
    began = time.monotonic()
    deadline = None if timeout is None else began + timeout
    last: JobStatus | None = None
    with ExitStack() as stack:
        follower: Follower = Polling(lambda: backend.report(allocation))
        is_followed = False
        while True:
            lost: SchedulerUnreachable | None = None
            try:
                status = status_of(follower.report())
                if condition(status):
                    status = status_of(follower.confirmed())
            except SchedulerUnreachable as error:
                lost = error
            else:
                if progress is not None and status != last:
                    progress(status)
                last = status
                if condition(status):
                    return status
            if deadline is not None and time.monotonic() >= deadline:
                if lost is not None:
                    raise lost
                assert last is not None
                raise _pending(last, timeout)
            if not is_followed:
                # A follower is expensive, and the first report usually satisfies the condition.
                follower = stack.enter_context(backend.follow(allocation))
                is_followed = True
            now = time.monotonic()
            # The poll interval grows with the time waited so far.
            pause_s = min(max((now - began) * _POLL_SHARE, _FIRST_POLL_S), backend.poll_s)
            left_s = pause_s if deadline is None else max(deadline - now, 0.0)
            follower.wait(min(pause_s, left_s))


def has_ended(status: JobStatus) -> bool:
    """Return whether a job has ended."""
    return status.state is Phase.ENDED


def is_up_or_over(status: JobStatus) -> bool:
    """Return whether all hosts of a job are up, or one of them has ended."""
    is_lossy = any(host.state is Phase.ENDED for host in status.hosts)
    return status.is_up or has_ended(status) or is_lossy


def ended_error(backend: Backend, allocation: Allocation, status: JobStatus) -> JobEnded:
    """Return the error for a job that ended or lost hosts, with the last lines of their logs."""
    lost = [host for host in status.hosts if host.state is Phase.ENDED]
    logs: dict[tuple[str, int], str] = {}
    for host in lost[:_LOGS_SHOWN_MAX]:
        try:
            logs[host.mesh, host.rank] = backend.logs(allocation, host.mesh, host.rank, _LOG_LINES)
        except (NotSupported, SchedulerUnreachable):
            continue  # The error is useful without logs.
    if status.state is Phase.ENDED:
        what, todo = "the job has ended", "apply it again"
    else:
        named = ", ".join(f"{host.mesh}[{host.rank}]" for host in lost)
        what, todo = f"these hosts of the job ended: {named}", "kill the job, and apply it again"
    reason = status.reason or next((host.reason for host in lost if host.reason), "")
    return JobEnded(f"{what}{f' ({reason})' if reason else ''}: {todo}", reason, logs)


def _pending(status: JobStatus, timeout: float | None) -> JobPending:
    reason = status.reason or next((host.reason for host in status.hosts if host.reason), "")
    why = f" ({reason})" if reason else ""
    if status.is_up:
        return JobPending(
            f"the job is still running after {timeout:g} s: wait longer, or kill it", reason
        )
    return JobPending(
        f"{status.up} of {len(status.hosts)} hosts are up after {timeout:g} s{why}: wait longer "
        "with state(), or release it with kill()",
        reason,
    )
