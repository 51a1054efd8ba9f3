"""Searches for hangs when a host reports a slow collective."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress

from mesh_core import MeshError
from mesh_telemetry._hangs.analysis import find_hangs
from mesh_telemetry._hangs.tables import record_hang
from mesh_telemetry._hangs.waits import find_waits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mesh_core import Future
    from mesh_telemetry._hangs.hang import Hang
    from mesh_telemetry._hangs.process_state import ProcessState
    from mesh_telemetry._hosts.host_handle import HostHandle

    Hosts = Callable[[], Sequence[HostHandle]]

__all__ = ["HangWatch", "ProcessStates", "look_for_hangs"]

# The time between the two observations that are compared.
_INTERVAL_S = 0.25
_REPLY_S = 1.0
# The pauses between two searches: hosts report a slow collective five times per second.
_PAUSE_S, _PAUSE_AFTER_REPORT_S = 0.3, 2.0
# A hang has ended if no host has reported a slow collective for this time.
_QUIET_S = 1.0
_log = logging.getLogger("mesh_telemetry")


class ProcessStates:
    """Requests the states of the processes of all hosts, and keeps the last reply of each host.

    Args:
        hosts: Returns the current hosts.
    """

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._last: dict[int, list[ProcessState]] = {}
        self._silent_since: dict[int, float] = {}

    def now(self) -> list[ProcessState]:
        """Return the state of each process; for hosts that do not reply, the last known states."""
        began = time.monotonic()
        requests = [(handle.number, _request(handle)) for handle in self._hosts()]
        until = began + _REPLY_S
        found: list[ProcessState] = []
        for number, reply in requests:
            try:
                if reply is None:
                    raise TimeoutError
                self._last[number] = reply.get(max(until - time.monotonic(), 0.0))
                found += self._last[number]
                self._silent_since.pop(number, None)
            except (MeshError, TimeoutError):
                silent_s = time.monotonic() - self._silent_since.setdefault(number, began)
                found += (
                    state._replace(
                        state="?",
                        stacks=None,
                        running=None,
                        is_busy=False,
                        waits=(),
                        silent_s=silent_s,
                    )
                    for state in self._last.get(number, ())
                )
        return found


def _request(handle: HostHandle) -> Future[list[ProcessState]] | None:
    """Request the states of a host; None if it cannot be called."""
    if handle.rows is not None:
        with suppress(MeshError):
            return handle.rows.process_states.call_one()
    return None


def look_for_hangs(states: ProcessStates, patience_s: float) -> list[Hang]:
    """Return the hangs of a job, of collectives and of calls."""
    before = states.now()
    time.sleep(_INTERVAL_S)
    now = states.now()
    return find_hangs(before, now, patience_s) or find_waits(now)


class HangWatch:
    """Reports the start and the end of each hang, once each, in the log and in the table `hangs`.

    Args:
        patience_s: How long a collective may take before a rank is suspected, in seconds.
    """

    def __init__(self, patience_s: float) -> None:
        self._handles: Sequence[HostHandle] = ()
        self._states = ProcessStates(lambda: self._handles)
        self._patience_s = patience_s
        self._is_requested = threading.Event()
        self._closing = threading.Event()
        self._open: dict[tuple[object, ...], Hang] = {}
        self._thread = threading.Thread(target=self._run, name="mesh-hang-watch", daemon=True)
        self._thread.start()

    def stalled(self, hosts: Sequence[HostHandle]) -> None:
        """Search for hangs now, because a host reports a slow collective.

        Args:
            hosts: The current hosts.
        """
        self._handles = hosts
        self._is_requested.set()

    def close(self) -> None:
        """Stop."""
        self._closing.set()
        self._is_requested.set()

    def _run(self) -> None:
        has_failed = False
        while not self._closing.is_set():
            is_stalled = self._is_requested.wait(_QUIET_S if self._open else None)
            self._is_requested.clear()
            if self._closing.is_set():
                return
            try:
                self._look(is_stalled)
                has_failed = False
            except Exception:
                # A failed search must not prevent the report of the next hang.
                if not has_failed:
                    _log.exception("mesh: the search for hangs failed")
                has_failed = True
            self._closing.wait(_PAUSE_AFTER_REPORT_S if self._open else _PAUSE_S)

    def _look(self, is_stalled: bool) -> None:
        hangs = self._certain_hangs() if is_stalled else []
        found = {hang.key: hang for hang in hangs}
        for key, hang in found.items():
            if key not in self._open:
                _log.warning("mesh: a collective hangs\n%s", hang)
                record_hang(hang, "begin")
        for key in self._open.keys() - found.keys():
            _log.warning("mesh: a collective continues that had hung\n%s", self._open[key])
            record_hang(self._open[key], "end")
        self._open = found

    def _certain_hangs(self) -> list[Hang]:
        before = self._states.now()
        time.sleep(_INTERVAL_S)
        hangs = find_hangs(before, self._states.now(), self._patience_s)
        # A reported hang remains open while it is found, even if it is no longer certain: on a busy
        # machine, its culprit may appear to compute.
        return [hang for hang in hangs if hang.is_certain or hang.key in self._open]
