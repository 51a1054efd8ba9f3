"""The exceptions of jobs, all derived from `JobError`."""

from __future__ import annotations

from mesh_core import MeshError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from mesh_jobs._spmd.rank_failure import RankFailure

__all__ = [
    "JobBusy",
    "JobEnded",
    "JobError",
    "JobMismatch",
    "JobPending",
    "NotSupported",
    "SchedulerUnreachable",
    "ScriptFailed",
]


class JobError(MeshError):
    """A job cannot perform a request; the message names a remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class JobMismatch(JobError):
    """The job that is applied under this context differs from the requested job.

    Attributes:
        differences: For each field that differs: its path, the applied value and the requested
            value.
    """

    def __init__(self, context: str, differences: Sequence[tuple[str, Any, Any]]) -> None:
        self.context = context
        self.differences: tuple[tuple[str, Any, Any], ...] = tuple(differences)
        lines = [
            f"    {path}: {old!r} is applied, {new!r} requested" for path, old, new in differences
        ]
        super().__init__(
            f"the job of context {context!r} differs from the requested job:\n"
            + "\n".join(lines)
            + "\n  nothing was changed: ask for the same, use another context, or give what runs "
            "back with apply(replace=True) or kill()"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.context, self.differences)


class JobPending(JobError, TimeoutError):
    """The hosts were not all up before the timeout; the allocation still exists.

    Attributes:
        reason: Why the hosts are not up, as the scheduler reports it.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class JobEnded(JobError):
    """The allocation, or one of its hosts, has ended.

    Attributes:
        reason: Why it has ended, as the scheduler reports it.
        logs: The last lines of output of each worker that ended, by mesh and rank.
    """

    def __init__(
        self, message: str, reason: str = "", logs: Mapping[tuple[str, int], str] | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.logs: dict[tuple[str, int], str] = dict(logs or {})

    def __str__(self) -> str:
        parts = [str(self.args[0])]
        for (mesh, rank), text in self.logs.items():
            lines = text.splitlines() or ["(it printed nothing)"]
            parts.append(f"  the last lines of {mesh}[{rank}]:")
            parts.extend(f"    {line}" for line in lines)
        return "\n".join(parts)


class SchedulerUnreachable(JobError):
    """The scheduler does not respond, so it is unknown whether the job runs or has ended."""


class NotSupported(JobError):
    """The backend does not support this operation."""


class ScriptFailed(JobError):
    """A rank of a script failed, and no restarts were left.

    Attributes:
        rank_failures: For each round of the ranks, the rank that failed first. The last one ended
            the run.
    """

    def __init__(self, rank_failures: Sequence[RankFailure]) -> None:
        self.rank_failures: tuple[RankFailure, ...] = tuple(rank_failures)
        super().__init__(str(self.rank_failures[-1]))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.rank_failures,)


class JobBusy(JobError):
    """Another program is changing the job at the moment."""


# Tracebacks show the public names, such as mesh_jobs.JobMismatch.
for _error in (
    JobError,
    JobMismatch,
    JobPending,
    JobEnded,
    SchedulerUnreachable,
    ScriptFailed,
    NotSupported,
    JobBusy,
):
    _error.__module__ = "mesh_jobs"
