"""The failures of a training, and its recoveries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mesh_core import HostDied, ProcDied
from mesh_tensor._training.rank_actors import StepFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mesh_core import Future

__all__ = ["Failure", "Interrupted", "Recovery", "describe_failure", "has_failed"]


@dataclass(frozen=True)
class Recovery:
    """A failure of training, and the recovery from it.

    Attributes:
        kind: The kind of failure: `process`, `host`, `hang`, or `exception` for one in the program.
        ranks: The ranks that failed.
        reason: A description of the failure.
        step: The last step that any rank had finished.
        resumed_step: The step from which training continued.
        source: The source of the state: `memory` or `disk`.
        damaged_copies: The number of copies in memory that were damaged and not used.
        reported_at: When the failure was reported, in seconds since the epoch.
        recovery_s: Seconds from then until training continued.
    """

    kind: str
    ranks: tuple[int, ...]
    reason: str
    step: int
    resumed_step: int
    source: str
    damaged_copies: int
    reported_at: float
    recovery_s: float

    @property
    def lost_steps(self) -> int:
        """The number of steps that had to be repeated."""
        return max(self.step - self.resumed_step, 0)


@dataclass(frozen=True)
class Failure:
    """A failure that interrupted a training."""

    kind: str
    ranks: tuple[int, ...]
    reason: str
    error: BaseException | None
    at: float


class Interrupted(Exception):
    """No rank trains any more, because of a failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


def has_failed(future: Future[Any]) -> bool:
    """Return whether a call has raised, or a rank has ended before its last step."""
    return future.exception() is not None or isinstance(future.get(), StepFailed)


def describe_failure(
    futures: Mapping[int, Future[Any]], hung: Sequence[int], at: float, *, is_late: bool
) -> Failure:
    """Describe the first failure, once all ranks have ended.

    Args:
        futures: The calls, by rank.
        hung: The ranks that were killed because they did not end. If another rank has failed, this
            is a consequence.
        at: When the failure was reported, in seconds since the epoch.
        is_late: Whether the calls were aborted because they took too long.
    """
    ended = {rank: future for rank, future in futures.items() if rank not in hung}
    errors = {rank: error for rank, future in ended.items() if (error := future.exception())}
    for kind, cls in (("host", HostDied), ("process", ProcDied), ("exception", Exception)):
        found = {rank: error for rank, error in errors.items() if isinstance(error, cls)}
        if found:
            first = next(iter(found.values()))
            return Failure(kind, tuple(found), str(first), first, at)
    failed = {
        rank: result
        for rank, future in ended.items()
        if isinstance(result := future.get(), StepFailed)
    }
    own = {rank: result for rank, result in failed.items() if not result.is_of_group}
    if hung and not own:
        reason = f"rank {', '.join(map(str, hung))} made no progress and was killed"
        return Failure("hang", tuple(hung), reason, None, at)
    if is_late and not own:
        return Failure("hang", tuple(failed), "no rank made progress", None, at)
    rank, result = next(iter((own or failed).items()))
    kind = "exception" if own else "process group"
    return Failure(
        kind, tuple(own or failed), f"rank {rank}: {result.text}", RuntimeError(result.trace), at
    )
