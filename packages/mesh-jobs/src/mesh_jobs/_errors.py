"""The errors of jobs, as one small tree under `JobError`."""

from __future__ import annotations

from mesh_core import MeshError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = [
    "JobBusy",
    "JobEnded",
    "JobError",
    "JobMismatch",
    "JobPending",
    "NotSupported",
    "SchedulerUnreachable",
]


class JobError(MeshError):
    """A job cannot do what was asked; the message says what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class JobMismatch(JobError):
    """What is applied under this context is not what the program asks for.

    Attributes:
        differences: For each field that differs its path, what is applied, and what is asked for.
    """

    def __init__(self, context: str, differences: Sequence[tuple[str, Any, Any]]) -> None:
        self.context = context
        self.differences: tuple[tuple[str, Any, Any], ...] = tuple(differences)
        lines = [f"    {path}: {old!r} is applied, {new!r} asked" for path, old, new in differences]
        super().__init__(
            f"the job of context {context!r} differs from what is asked:\n"
            + "\n".join(lines)
            + "\n  nothing was changed: ask for the same, use another context, or give what runs "
            "back with apply(replace=True) or kill()"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.context, self.differences)


class JobPending(JobError, TimeoutError):
    """The hosts were not all up in time; the allocation still stands.

    Attributes:
        reason: Why it waits, in the scheduler's words.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class JobEnded(JobError):
    """The allocation is over, or one of its hosts is.

    Attributes:
        reason: Why, in the scheduler's words.
        logs: The last lines of each worker that ended, by mesh and rank.
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
    """The scheduler cannot be asked, so nothing is known: neither that a job runs nor its end."""


class NotSupported(JobError):
    """This backend has no such thing."""


class JobBusy(JobError):
    """Another program is changing the job right now."""


# A traceback names them as a program does: mesh_jobs.JobMismatch.
for _error in (
    JobError,
    JobMismatch,
    JobPending,
    JobEnded,
    SchedulerUnreachable,
    NotSupported,
    JobBusy,
):
    _error.__module__ = "mesh_jobs"
