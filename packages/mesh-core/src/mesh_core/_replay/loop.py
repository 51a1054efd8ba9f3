"""An event loop in virtual time, which runs only while it has something to do."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["VirtualLoop"]


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs the tasks of a replay.

    Its time is the time of the record. Timers run in the order of their deadlines, without waiting.
    """

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__()
        # A task that awaits a timer must not be woken by the tick of a real clock.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now_s

    def settle(self, until_s: float) -> None:
        """Run everything that is ready, and the timers up to a time."""
        me: Any = self
        while True:
            while me._ready:
                self.call_soon(self.stop)
                self.run_forever()
                # `stop` itself schedules nothing, but the callbacks may have made others ready.
            timers = [one for one in me._scheduled if not one._cancelled]
            first = min((one.when() for one in timers), default=None)
            if first is None or first > until_s:
                break
            self._now_s = max(self._now_s, first)
            self.call_soon(self.stop)
            self.run_forever()
        self._now_s = max(self._now_s, until_s)
