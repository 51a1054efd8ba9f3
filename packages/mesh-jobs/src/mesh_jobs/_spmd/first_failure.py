"""The rank that failed first, and why: what people look for when a run has failed."""

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
    """Listens to the lines and exits of ranks; knows afterwards which one failed first."""

    def __init__(self, mesh: str, extent: Extent, show: Callable[[RankLine], object]) -> None:
        self._mesh = mesh
        self._extent = extent
        self._pass_on = show
        self._tails: defaultdict[int, deque[str]] = defaultdict(lambda: deque(maxlen=_TAIL_LINES))
        self._errors: dict[int, list[str]] = {}
        self.rank: int | None = None
        self.status = 0

    def show(self, line: RankLine) -> None:
        """Passes a line on, and remembers it while it may be the last of a failure."""
        if line.stream == "stderr" and self.rank is None:
            self._tails[line.place.rank].append(line.text)
        self._pass_on(line)

    def told(self, rank: int, error: bytes) -> None:
        """Takes what torch has written about the failure of a rank."""
        if self.rank is None and (lines := _traceback(error)):
            self._errors[rank] = lines

    def exited(self, rank: int, status: int) -> bool:
        """Takes note of an exit; says whether it is the first failure."""
        if status == 0 or self.rank is not None:
            return False
        self.rank, self.status = rank, status
        return True

    def report(self) -> str:
        """Says which rank failed first, with its traceback or what else it said last."""
        assert self.rank is not None
        label = rank_label(self._mesh, Point(self.rank, self._extent))
        lines = list(self._tails[self.rank])
        starts = [at for at, line in enumerate(lines) if line.startswith(_TRACEBACK)]
        said = lines[starts[-1] :] if starts else lines[-20:]
        # Of all that a rank prints, torch knows best what ended it.
        shown = self._errors.get(self.rank, said)
        head = f"mesh: rank {self.rank} ({label}) failed first, {status_text(self.status)}"
        return "\n".join([f"{head}:" if shown else head, *shown])

    def print(self) -> None:
        """Prints the report, if any rank has failed."""
        if self.rank is not None:
            sys.stderr.write(self.report() + "\n")
            sys.stderr.flush()


def _traceback(error: bytes) -> list[str]:
    """Reads the traceback in torch's form; nothing where it is another."""
    try:
        message = json.loads(error)["message"]
        text = message if isinstance(message, str) else message["extraInfo"]["py_callstack"]
    except (ValueError, LookupError, TypeError):
        return []
    return str(text).rstrip().splitlines()


def status_text(status: int) -> str:
    """Puts an exit status into words."""
    number = status - _BY_SIGNAL
    if number in signal.valid_signals():
        return f"ended by {signal.Signals(number).name}"
    return f"with exit status {status}"
