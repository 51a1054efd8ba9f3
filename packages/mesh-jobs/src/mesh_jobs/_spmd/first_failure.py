"""The first rank that failed and its error, which is usually the cause of a failed run."""

from __future__ import annotations

import json
import signal
import sys
from collections import defaultdict, deque
from typing import TYPE_CHECKING

from mesh_core import Point
from mesh_jobs._exec.rank_environment import rank_label

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core import Extent
    from mesh_jobs._exec.rank_output import RankLine

__all__ = ["FirstFailure", "status_text"]

_TAIL_LINES = 100
_TRACEBACK = "Traceback (most recent call last):"
_BY_SIGNAL = 128


class FirstFailure:
    """Monitor of the output and the exits of ranks, which determines the rank that failed first."""

    def __init__(self, mesh: str, extent: Extent, show: Callable[[RankLine], object]) -> None:
        self._mesh = mesh
        self._extent = extent
        self._pass_on = show
        self._tails: defaultdict[int, deque[str]] = defaultdict(lambda: deque(maxlen=_TAIL_LINES))
        self._errors: dict[int, list[str]] = {}
        self.rank: int | None = None
        self.status = 0

    def show(self, line: RankLine) -> None:
        """Pass a line on, and keep it while it may belong to the error of a failure."""
        if line.stream == "stderr" and self.rank is None:
            self._tails[line.place.rank].append(line.text)
        self._pass_on(line)

    def record_error(self, rank: int, error: bytes) -> None:
        """Process the error file of a rank, which torch has written."""
        if self.rank is None and (lines := _traceback(error)):
            self._errors[rank] = lines

    def exited(self, rank: int, status: int) -> bool:
        """Record an exit; return whether it is the first failure."""
        if status == 0 or self.rank is not None:
            return False
        self.rank, self.status = rank, status
        return True

    def report(self) -> str:
        """Return a report on the rank that failed first, with its traceback or its last output."""
        assert self.rank is not None
        label = rank_label(self._mesh, Point(self.rank, self._extent))
        lines = list(self._tails[self.rank])
        starts = [at for at, line in enumerate(lines) if line.startswith(_TRACEBACK)]
        said = lines[starts[-1] :] if starts else lines[-20:]
        # The error file of torch is more reliable than the output of the rank.
        shown = self._errors.get(self.rank, said)
        head = f"mesh: rank {self.rank} ({label}) failed first, {status_text(self.status)}"
        return "\n".join([f"{head}:" if shown else head, *shown])

    def print(self) -> None:
        """Print the report, if any rank has failed."""
        if self.rank is not None:
            sys.stderr.write(self.report() + "\n")
            sys.stderr.flush()


def _traceback(error: bytes) -> list[str]:
    """Parse the traceback from an error file of torch; empty if it has another format."""
    try:
        message = json.loads(error)["message"]
        text = message if isinstance(message, str) else message["extraInfo"]["py_callstack"]
    except (ValueError, LookupError, TypeError):
        return []
    return str(text).rstrip().splitlines()


def status_text(status: int) -> str:
    """Return a human-readable description of an exit status."""
    number = status - _BY_SIGNAL
    if number in signal.valid_signals():
        return f"ended by {signal.Signals(number).name}"
    return f"with exit status {status}"
