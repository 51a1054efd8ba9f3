"""Hosts that are about to go, told to the program while there is time to save what they have."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from mesh_jobs._errors import JobError
from mesh_jobs._report import HostLeaving

__all__ = ["LeavingWatch"]


class LeavingWatch:
    """Looks from time to time whether hosts are leaving, and says so once for each.

    It ends with `stop`, at the end of a `with` block, or with the program.
    """

    def __init__(
        self,
        look: Callable[[], Sequence[HostLeaving]],
        tell: Callable[[HostLeaving], object],
        poll_s: float,
    ) -> None:
        self._look = look
        self._tell = tell
        self._poll_s = poll_s
        self._told: set[tuple[str, int, str, int]] = set()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="mesh-leaving", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Looks no more; what is being told is told first."""
        self._is_over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> LeavingWatch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _watch(self) -> None:
        while not self._is_over.is_set():
            try:
                leaving = self._look()
            except JobError:
                leaving = ()  # It is not applied any more, or cannot be asked now.
            for one in leaving:
                key = (one.mesh, one.rank, one.reason, one.epoch)
                if key not in self._told:
                    self._told.add(key)
                    self._tell(one)
            self._is_over.wait(self._poll_s)
