"""The failure of a rank of a script."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

__all__ = ["RankFailure"]

_BY_SIGNAL = 128


@dataclass(frozen=True)
class RankFailure:
    """The rank of a script that failed first, which is usually the cause of a failed run.

    Attributes:
        rank: The rank, as in the variable `RANK`.
        label: The name of the rank in the output, such as `trainers hosts=1 gpus=3`.
        host: The name of its host.
        exit_code: Its exit status, 128 + N for signal N.
        restart_count: How often the ranks had been restarted before, as in the variable
            `TORCHELASTIC_RESTART_COUNT`.
        message: The type and the text of the exception, if a function with
            `torch.distributed.elastic.multiprocessing.errors.record` raised it; otherwise empty.
        exception_type: The name of that exception's class; otherwise empty.
        traceback: The traceback of that exception. Otherwise, the last traceback in the output of
            the rank, or its last lines on stderr.
    """

    rank: int
    label: str
    host: str
    exit_code: int
    restart_count: int = 0
    message: str = ""
    exception_type: str = ""
    traceback: str = ""

    def __str__(self) -> str:
        """Return a report with the message and the traceback."""
        head = f"rank {self.rank} ({self.label}) failed first, {self._ending()} on {self.host}"
        if self.restart_count:
            head += f" after {self.restart_count} restart{'s' if self.restart_count > 1 else ''}"
        first_line = self.message.partition("\n")[0]
        shown = (self.traceback or self.message).splitlines()
        if first_line:
            head += f": {first_line}"
        elif shown:
            head += ":"
        return "\n".join([head, *(shown if shown != [first_line] else [])])

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object."""
        return dict(vars(self))

    def _ending(self) -> str:
        number = self.exit_code - _BY_SIGNAL
        if number in signal.valid_signals():
            return f"ended by {signal.Signals(number).name}"
        return f"with exit status {self.exit_code}"
