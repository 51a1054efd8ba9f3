"""Asking a backend again and again until it is enough, and saying why it was not."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from mesh_jobs._backend.backend import Backend
from mesh_jobs._backend.follower import Follower, Polling
from mesh_jobs._backend.report import Phase, Report, Ticket
from mesh_jobs._errors import JobEnded, JobPending, NotSupported, SchedulerUnreachable
from mesh_jobs._job.status import JobStatus

__all__ = ["Progress", "ended", "has_ended", "is_up_or_over", "watch"]

_FIRST_POLL_S = 0.02
_LATENESS = 0.1
_LOG_LINES = 20
_LOGS_SHOWN_MAX = 4

Progress = Callable[[JobStatus], None]


def watch(
    backend: Backend,
    ticket: Ticket,
    status_of: Callable[[Report], JobStatus],
    is_enough: Callable[[JobStatus], bool],
    *,
    timeout: float | None,
    progress: Progress | None,
) -> JobStatus:
    """Waits until it is enough, and gives the status for which it is.

    Raises:
        JobPending: It was not in time.
        SchedulerUnreachable: The scheduler could not be asked at the end of that time.
    """
    began = time.monotonic()
    deadline = None if timeout is None else began + timeout
    told: JobStatus | None = None
    with ExitStack() as stack:
        follower: Follower = Polling(lambda: backend.report(ticket))
        is_followed = False
        while True:
            lost: SchedulerUnreachable | None = None
            try:
                status = status_of(follower.report())
                if is_enough(status):
                    status = status_of(follower.confirmed())
            except SchedulerUnreachable as error:
                lost = error
            else:
                if progress is not None and status != told:
                    progress(status)
                told = status
                if is_enough(status):
                    return status
            if deadline is not None and time.monotonic() >= deadline:
                if lost is not None:
                    raise lost
                assert told is not None
                raise _pending(told, timeout)
            if not is_followed:
                # Most who ask find the hosts there, and need not wait.
                follower = stack.enter_context(backend.follow(ticket))
                is_followed = True
            now = time.monotonic()
            # Who waits for long may learn of it a little later.
            pause_s = min(max((now - began) * _LATENESS, _FIRST_POLL_S), backend.poll_s)
            left_s = pause_s if deadline is None else max(deadline - now, 0.0)
            follower.wait(min(pause_s, left_s))


def has_ended(status: JobStatus) -> bool:
    """Whether nothing of a job runs any more."""
    return status.state is Phase.ENDED


def is_up_or_over(status: JobStatus) -> bool:
    """Whether a job is up as it was asked for, or will not be any more."""
    is_lossy = any(host.state is Phase.ENDED for host in status.hosts)
    return status.is_up or has_ended(status) or is_lossy


def ended(backend: Backend, ticket: Ticket, status: JobStatus) -> JobEnded:
    """Says how a job has ended, or which hosts of it, with their last words."""
    lost = [host for host in status.hosts if host.state is Phase.ENDED]
    logs: dict[tuple[str, int], str] = {}
    for host in lost[:_LOGS_SHOWN_MAX]:
        try:
            logs[host.mesh, host.rank] = backend.logs(ticket, host.mesh, host.rank, _LOG_LINES)
        except (NotSupported, SchedulerUnreachable):
            continue  # The end itself is the news.
    if status.state is Phase.ENDED:
        what, todo = "the job has ended", "apply it again"
    else:
        named = ", ".join(f"{host.mesh}[{host.rank}]" for host in lost)
        what, todo = f"of the job's hosts {named} ended", "kill the job, and apply it again"
    reason = status.reason or next((host.reason for host in lost if host.reason), "")
    return JobEnded(f"{what}{f' ({reason})' if reason else ''}: {todo}", reason, logs)


def _pending(status: JobStatus, timeout: float | None) -> JobPending:
    reason = status.reason or next((host.reason for host in status.hosts if host.reason), "")
    why = f" ({reason})" if reason else ""
    if status.is_up:
        return JobPending(
            f"the job still runs after {timeout:g} s: wait longer, or kill it", reason
        )
    return JobPending(
        f"{status.up} of {len(status.hosts)} hosts are up after {timeout:g} s{why}: wait longer "
        "with state(), or give it back with kill()",
        reason,
    )
