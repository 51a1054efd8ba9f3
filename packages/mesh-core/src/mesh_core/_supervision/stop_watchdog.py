"""Watchdog for stops of actors whose process can no longer run Python code.

The orderly stop of an actor runs in its process and is bounded in time. If code in that process
holds the GIL and does not return, no part of the stop can run. Therefore the process that requested
the stop periodically checks whether the other process responds at all, and has it killed if it does
not.
"""

from __future__ import annotations

import threading
import time

from mesh_core._core import Targets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._runtime.runtime import Runtime

__all__ = ["StopWatch"]

# A healthy process may be busy for this long.
_LOOK_S_MIN = 1.0
_WHY = "it gave no sign of life for {:g} s while one of its actors was stopping"


class _Stop:
    """A stop in progress.

    Attributes:
        reply: The port on which the replies to the stop arrive.
        look_s: How long a process may be silent, in seconds.
        due: When to check next, as `time.monotonic()`; 0 after the end.
        probe: The port on which the replies to the last check arrive; 0 before the first check.
    """

    __slots__ = ("due", "look_s", "probe", "reply")

    def __init__(self, reply: int, look_s: float) -> None:
        self.reply = reply
        self.look_s = look_s
        self.due = time.monotonic() + look_s
        self.probe = 0


class StopWatch:
    """Stops of actors that this process waits for. The thread of the agent monitors them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._stops: list[_Stop] = []
        # Pairs of a stop and a process that was killed because of it.
        self._ended: set[tuple[int, int]] = set()

    def watch(self, reply: int, grace_s: float) -> None:
        """Monitor a stop whose replies arrive on a port."""
        stop = _Stop(reply, max(grace_s, _LOOK_S_MIN))
        with self._lock:
            is_first = all(stop.due < other.due for other in self._stops)
            self._stops.append(stop)
        if is_first:
            # The agent sleeps until its next timer, which may be later.
            self._runtime.tell_agent(self._runtime.me, "wake")

    def has_ended(self, reply: int, proc: int) -> bool:
        """Return whether a process was killed because it blocked a stop; true only once."""
        with self._lock:
            was_ended = (reply, proc) in self._ended
            self._ended.discard((reply, proc))
        return was_ended

    def due_in_s(self) -> float | None:
        """Return the seconds until `tick` is due, or None."""
        with self._lock:
            if not self._stops:
                return None
            return max(min(stop.due for stop in self._stops) - time.monotonic(), 0.0)

    def tick(self) -> None:
        """Check the stops that are due."""
        now = time.monotonic()
        with self._lock:
            due = [stop for stop in self._stops if stop.due <= now]
        if not due:
            return
        silent: dict[int, set[int]] = {}
        for reply, proc, _ in self._runtime.engine.waits():
            silent.setdefault(reply, set()).add(proc)
        for stop in due:
            self._look(stop, silent.get(stop.reply, set()), silent.get(stop.probe, set()))
        with self._lock:
            self._stops = [stop for stop in self._stops if stop.due]

    def _look(self, stop: _Stop, unstopped: set[int], silent: set[int]) -> None:
        runtime = self._runtime
        if stop.probe:
            runtime.engine.forget(stop.probe)
        for proc in unstopped & silent:
            with self._lock:
                self._ended.add((stop.reply, proc))
            why = _WHY.format(stop.look_s)
            runtime.tell_agent(proc >> 32 << 32, "end_silent", proc & 0xFFFF_FFFF, why)
        if not unstopped:
            stop.due = 0.0
            return
        stop.probe = runtime.call_agents(Targets([(proc, 0) for proc in unstopped]), "wake")
        stop.due = time.monotonic() + stop.look_s
