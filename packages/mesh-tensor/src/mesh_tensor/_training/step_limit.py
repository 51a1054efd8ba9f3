"""The step before which a rank stops, which the program sets while the rank trains."""

from __future__ import annotations

import threading

__all__ = ["StepLimit"]


class StepLimit:
    """Lets all ranks stop at the same step, although each of them trains without the program.

    The program pauses all ranks, which reply how many steps they have begun. Ranks that have begun
    fewer steps than others cannot stop there, because the others wait for them in collectives: all
    of them continue to the highest number.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_paused = self._is_aborted = False
        self._stop_step: int | None = None
        self._begun = 0

    def begin(self, step: int) -> bool:
        """Return whether the rank trains this step; waits while that is undecided.

        Raises:
            RuntimeError: The collectives of the rank were aborted.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: not self._is_paused or self._stop_step is not None or self._is_aborted
            )
            if self._is_aborted:
                raise RuntimeError("the process group was aborted")
            if self._stop_step is not None and step >= self._stop_step:
                return False
            self._begun = step + 1
            return True

    def pause(self) -> int:
        """Let the rank begin no more steps until `stop_at`; return how many it has begun."""
        with self._changed:
            self._is_paused = True
            return self._begun

    def stop_at(self, step: int) -> None:
        """Let the rank continue, and stop before this step."""
        with self._changed:
            self._stop_step = step
            self._changed.notify_all()

    def abort(self) -> None:
        """Let `begin` raise an error."""
        with self._changed:
            self._is_aborted = True
            self._changed.notify_all()
