"""The first rank that failed in a round and its error."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import replace
from typing import TYPE_CHECKING

from mesh_core import Point
from mesh_jobs._exec.rank_environment import rank_label
from mesh_jobs._spmd.rank_failure import RankFailure
from mesh_jobs._spmd.recorded_error import RecordedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mesh_core import Extent
    from mesh_jobs._exec.rank_output import RankLine

__all__ = ["FirstFailure"]

_TAIL_LINES = 100
_SHOWN_LINES = 20
_TRACEBACK = "Traceback (most recent call last):"


class FirstFailure:
    """Monitor of the output and the exits of ranks, which determines the rank that failed first."""

    def __init__(self, mesh: str, extent: Extent, show: Callable[[RankLine], object]) -> None:
        self._mesh = mesh
        self._extent = extent
        self._pass_on = show
        self._tails: defaultdict[int, deque[str]] = defaultdict(lambda: deque(maxlen=_TAIL_LINES))
        self._errors: dict[int, RecordedError] = {}
        self._failed: tuple[int, int] | None = None

    def show(self, line: RankLine) -> None:
        """Pass a line on, and keep it while it may belong to the error of a failure."""
        if line.stream == "stderr" and self._failed is None:
            self._tails[line.place.rank].append(line.text)
        self._pass_on(line)

    def record_error(self, rank: int, content: bytes) -> None:
        """Process the error file of a rank, which torch has written."""
        if self._failed is None and (error := RecordedError.parse(content)):
            self._errors[rank] = error

    def exited(self, rank: int, status: int) -> bool:
        """Record an exit; return whether it is the first failure."""
        if status == 0 or self._failed is not None:
            return False
        self._failed = rank, status
        return True

    def finish_round(self, host_names: Sequence[str], restart_count: int) -> RankFailure | None:
        """Return the failure of the rank that failed first; None if no rank has failed.

        Afterwards, the monitor is ready for the next round.

        Args:
            host_names: The name of each rank's host.
            restart_count: The number of restarts before this round.
        """
        failed, self._failed = self._failed, None
        tails, errors = dict(self._tails), dict(self._errors)
        self._tails.clear()
        self._errors.clear()
        if failed is None:
            return None
        rank, status = failed
        label = rank_label(self._mesh, Point(rank, self._extent))
        failure = RankFailure(rank, label, host_names[rank], status, restart_count)
        # The error file of torch is more reliable than the output of the rank.
        if error := errors.get(rank):
            return replace(
                failure,
                message=error.message,
                exception_type=error.exception_type,
                traceback=error.traceback,
            )
        lines = list(tails.get(rank, ()))
        starts = [at for at, line in enumerate(lines) if line.startswith(_TRACEBACK)]
        said = lines[starts[-1] :] if starts else lines[-_SHOWN_LINES:]
        return replace(failure, traceback="\n".join(said))
