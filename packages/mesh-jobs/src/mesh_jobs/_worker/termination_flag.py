"""Hearing that this process is told to end before, and after, somebody handles that."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType

__all__ = ["TerminationFlag"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class TerminationFlag:
    """Notes that this process is told to end, while it is entered and nobody else handles that.

    Nothing is interrupted: whatever is entered inside is left in good order.

    Attributes:
        is_set: Whether it was told.
    """

    def __init__(self) -> None:
        self.is_set: bool = False
        self._before: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> TerminationFlag:
        """Takes the signals.

        Raises:
            ValueError: This is not the main thread.
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
        """Tells it again, to who handles it now."""
        os.kill(os.getpid(), signal.SIGTERM)

    def _set(self, _number: int, _frame: FrameType | None) -> None:
        self.is_set = True
