"""Processes stopped by a signal, from the supervisor's view: reported immediately, killed later.

Times are in the supervisor's own running time. A late check, because the supervisor was starved or
stopped as well, counts as one check, so that nothing is killed when a whole program is resumed.
"""

import os
import signal
import time
from collections.abc import Callable, Collection

from mesh_core._processes.exit_report import signal_name
from mesh_core._system import kernel as _kernel

__all__ = ["LOOK_S", "StoppedProcs", "StoppedTemplates"]

LOOK_S = 0.25
# The time that a template may be stopped while processes wait for it; then another template takes
# over its work.
_TEMPLATE_LIMIT_S = 1.0
_STOPPED = "T"


class _Stop:
    def __init__(self, signal: int, limit_s: float) -> None:
        self.signal = signal
        self.limit_s = limit_s
        self.stopped_s = 0.0


class _Clock:
    """Measures the running time of this process in check intervals."""

    def __init__(self) -> None:
        self._looked_at: float | None = None

    def look(self) -> float:
        """Return the seconds since the last check, at most one interval."""
        now = time.monotonic()
        before, self._looked_at = self._looked_at, now
        return 0.0 if before is None else min(now - before, LOOK_S)

    def rest(self) -> None:
        """Pause until the next check."""
        self._looked_at = None


class StoppedProcs:
    """The stopped processes of a supervisor and the time for which each has been stopped.

    Args:
        on_stop: Called with the pid and the signal of a process that was stopped.
        on_continue: Called with the pid of a process that runs again.
        kill: Called with the pid and the reason when a process was stopped for too long.
    """

    def __init__(
        self,
        on_stop: Callable[[int, int], None],
        on_continue: Callable[[int], None],
        kill: Callable[[int, str], None],
    ) -> None:
        self._on_stop = on_stop
        self._on_continue = on_continue
        self._kill = kill
        self._stops: dict[int, _Stop] = {}
        self._clock = _Clock()

    @property
    def is_empty(self) -> bool:
        """Whether no process is stopped."""
        return not self._stops

    def collect(self, limit_of: Callable[[int], float | None]) -> None:
        """Collect the kernel's reports of stopped and continued children.

        Args:
            limit_of: Returns the seconds that a process may be stopped; None for other children.
        """
        kinds = os.WSTOPPED | os.WCONTINUED | os.WNOHANG
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, kinds)
            except ChildProcessError:
                return
            if found is None:
                return
            limit_s = limit_of(found.si_pid)
            if limit_s is None:
                continue
            if found.si_code == os.CLD_CONTINUED:
                self._resume(found.si_pid)
            else:
                self._stops[found.si_pid] = _Stop(found.si_status, limit_s)
                self._on_stop(found.si_pid, found.si_status)

    def look(self) -> None:
        """Kill processes that have been stopped for too long."""
        passed_s = self._clock.look()
        for pid, stop in list(self._stops.items()):
            # A process that was stopped by a debugger (`t`) does not count.
            if _kernel.state_of(pid) != _STOPPED:
                self._resume(pid)
                continue
            stop.stopped_s += passed_s
            if stop.stopped_s >= stop.limit_s:
                del self._stops[pid]
                name = signal_name(stop.signal)
                self._kill(pid, f"it was stopped by {name} for {stop.limit_s:g} s and killed")
        if not self._stops:
            self._clock.rest()

    def forget(self, pid: int) -> None:
        """Remove a process that has exited."""
        self._stops.pop(pid, None)

    def _resume(self, pid: int) -> None:
        if self._stops.pop(pid, None) is not None:
            self._on_continue(pid)


class StoppedTemplates:
    """Kills stopped templates and their forks while a batch waits for them."""

    def __init__(self) -> None:
        self._stopped_s: dict[int, float] = {}
        self._clock = _Clock()

    def look(self, spared: Collection[int]) -> None:
        """Check all descendants of this process except those in `spared` and their descendants."""
        passed_s = self._clock.look()
        stopped = {
            pid: self._stopped_s.get(pid, 0.0) + passed_s
            for pid in _descendants(spared)
            if _kernel.state_of(pid) == _STOPPED
        }
        for pid, stopped_s in stopped.items():
            if stopped_s >= _TEMPLATE_LIMIT_S:
                _kernel.kill_quietly(pid, signal.SIGKILL)
        self._stopped_s = stopped

    def rest(self) -> None:
        """Reset, because no batch waits for a template."""
        self._stopped_s.clear()
        self._clock.rest()


def _descendants(spared: Collection[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in _kernel.parents().items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    left = [os.getpid()]
    while left:
        for pid in children.get(left.pop(), ()):
            if pid not in spared:
                found.append(pid)
                left.append(pid)
    return found
