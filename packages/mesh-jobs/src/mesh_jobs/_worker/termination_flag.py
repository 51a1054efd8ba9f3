"""A flag that remembers termination signals while no other handler is installed."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType

__all__ = ["TerminationFlag"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class TerminationFlag:
    """Flag that records SIGTERM and SIGINT inside the context, unless another handler replaces it.

    The signals do not interrupt the program, so nested contexts are exited normally.

    Attributes:
        is_set: Whether a signal was received.
    """

    def __init__(self) -> None:
        self.is_set: bool = False
        self._before: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> TerminationFlag:
        """Install the handlers.

        Raises:
            ValueError: The caller is not the main thread.
        """
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._set)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def raise_again(self) -> None:
        """Send SIGTERM to this process, for the handler that is installed now."""
        os.kill(os.getpid(), signal.SIGTERM)

    def _set(self, _number: int, _frame: FrameType | None) -> None:
        self.is_set = True
