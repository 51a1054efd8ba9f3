"""The actor that manages telemetry on all hosts of a program."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from mesh_core import (
    Actor,
    MeshError,
    configured,
    context,
    endpoint,
    this_host,
    this_proc,
)
from mesh_core.spi import current_process
from mesh_telemetry._debug.failure_rules import FailureRule
from mesh_telemetry._errors import cause_of
from mesh_telemetry._events.folders import sweep
from mesh_telemetry._events.program_line import program_line
from mesh_telemetry._hangs.hang_watch import HangWatch
from mesh_telemetry._hosts.host_handle import HostHandle
from mesh_telemetry._hosts.host_rows import HostRows
from mesh_telemetry._recording.collector import COLLECTOR_NAME, Collector, is_ours
from mesh_telemetry._recording.recording import Recording

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import Future, HostMesh, MeshFailure, ProcMesh
    from mesh_telemetry._options import TelemetryConfig

__all__ = ["COORDINATOR_NAME", "Coordinator"]

COORDINATOR_NAME = "mesh-telemetry-coordinator"
_PROC_NAME = "mesh-telemetry"
# Seconds between two attempts to start the telemetry process of a host.
_RETRY_S = 1.0
_RULES_S = 10.0
_ADOPT_S = 2.0
# Interval at which a closing process is checked, and the time it has to respond.
_ALIVE_CHECK_PERIOD_S = 1.0
_ALIVE_TIMEOUT_S = 5.0


class _HostState:
    """A host and its telemetry process."""

    def __init__(self, number: int, host: HostMesh) -> None:
        self.number = number
        self.host = host
        self.name = f"host {number}"
        self.procs: ProcMesh | None = None
        self.rows: HostRows | None = None
        self.name_future: Future[str] | None = None
        self.error: str | None = None
        self.started_at = 0.0
        self.keeper: _HostState | None = None
        """The host to which its latest events are copied."""
        self.is_adopted = False
        """Whether queries of the keeper include the copy."""
        self._copying: tuple[HostRows | None, HostRows | None] = None, None

    def mark_lost(self, cause: str) -> None:
        """Record that the telemetry process of the host was lost."""
        self.procs, self.rows, self.name_future, self.error = None, None, None, cause

    def copy_to(self, keeper: _HostState | None) -> None:
        """Copy the latest events of the host to another one."""
        now = self.rows, None if keeper is None else keeper.rows
        if now == self._copying or self.rows is None:
            return
        self.set_adopted(is_adopted=False)
        with suppress(MeshError):
            self.rows.copy_to.broadcast(now[1])
        self.keeper, self._copying = keeper, now

    def set_adopted(self, *, is_adopted: bool) -> None:
        """Set whether queries of the keeper include the copy."""
        if is_adopted == self.is_adopted or self.keeper is None or self.keeper.rows is None:
            return
        with suppress(MeshError, TimeoutError):
            self.keeper.rows.adopt.call_one(self.number, is_adopted).get(_ADOPT_S)
        self.is_adopted = is_adopted

    def handle(self) -> HostHandle:
        """Return the handle; a lost process counts as lost until its replacement has replied."""
        if self.name_future is not None and self.name_future.done():
            name_future, self.name_future = self.name_future, None
            failure = name_future.exception()
            if failure is None:
                self.name, self.error = name_future.get(), None
            else:
                self.mark_lost(cause_of(failure))
        rows = self.rows if self.error is None else None
        error = self.error
        if rows is None and self.is_adopted and self.keeper is not None:
            error = f"{error}; its latest rows come from a copy on {self.keeper.name}"
        return HostHandle(self.number, self.name, rows, error)


class Coordinator(Actor):
    """Runs one telemetry process on each host, and replaces it if it is lost.

    Args:
        run: The name of the run.
        config: The options.
    """

    def __init__(self, run: str, config: TelemetryConfig) -> None:
        self._run = run
        self._config = config
        self._program = program_line()
        self._recording = Recording(run, config, (context().actor_instance.actor_id.port,))
        self._hosts: dict[int, _HostState] = {}
        self._collector: Collector | None = None
        self._own_handle: Coordinator | None = None
        self._failure_rules: list[FailureRule] = []
        self._hang_watch: HangWatch | None = None
        self._is_closed = False

    def __supervise__(self, failure: MeshFailure) -> bool:
        """Record hosts whose telemetry process was lost; with an export, replace it immediately."""
        for state in self._hosts.values():
            for mesh in failure.meshes:
                if mesh in (state.procs, state.rows):
                    state.mark_lost(failure.error.how())
            if self._config.otlp is not None and state.rows is None:
                self._restart_later(state)
        self._update_copies()
        return True

    @endpoint
    def begin(self, coordinator: Coordinator) -> None:
        """Start recording the process of the program; `coordinator` is the handle of this actor."""
        self._recording.check()
        self._own_handle = coordinator
        collector = this_proc().spawn(COLLECTOR_NAME, Collector, self._recording, coordinator)
        collector.initialized.get()
        self._collector = collector
        if current_process.location().slot:
            # The program is not the agent of its host, so another process reports for the host.
            current_process.host_agents(this_host()).spawn(
                COLLECTOR_NAME, Collector, self._recording, coordinator
            )
        self._add_hosts(this_host())

    @endpoint
    def add_hosts(self, hosts: HostMesh) -> None:
        """Register hosts on which processes are recorded."""
        self._add_hosts(hosts)

    @endpoint
    def watch(self, procs: ProcMesh) -> list[tuple[int, Collector]]:
        """Start recording existing processes; return the result of `Collector.watch`."""
        assert self._collector is not None, "the handle asks only after `begin`"
        found = self._collector.watch.call_one(procs).get()
        self._add_hosts(procs.host_mesh)
        return found

    @endpoint
    def collectors_lost(self, lost: list[tuple[int, int]]) -> None:
        """Forward lost collectors, as reported by their watcher, to `Collector.lost`."""
        if self._collector is not None:
            self._collector.lost.call_one(lost).get()

    @endpoint
    def hosts(self) -> list[HostHandle]:
        """Return the handle of each host; restart lost telemetry processes on live hosts."""
        for state in self._hosts.values():
            if state.rows is None and time.monotonic() - state.started_at > _RETRY_S:
                self._start(state)
        self._update_copies()
        return [state.handle() for state in self._hosts.values()]

    @endpoint
    def stalled(self) -> None:
        """Search for hangs, because collectives are slow on a host."""
        patience_s = self._config.hang_timeout_s
        if self._hang_watch is None and patience_s is not None and not self._is_closed:
            self._hang_watch = HangWatch(patience_s)
        if self._hang_watch is not None:
            # Unlike `hosts`, this does not restart lost telemetry processes, which may be slow.
            self._hang_watch.stalled([state.handle() for state in self._hosts.values()])

    @endpoint
    def lost(self, number: int, rows: HostRows, cause: str) -> None:
        """Record that a telemetry process was lost; called by the first process to detect it."""
        state = self._hosts.get(number)
        if state is not None and state.rows == rows:
            state.mark_lost(cause)
            self._update_copies()

    @endpoint
    def set_failure_rule(self, mesh: str | None, limit_s: float | None) -> None:
        """Pause actors at failures in all processes.

        Args:
            mesh: The mesh to which the rule applies; all meshes if None.
            limit_s: Seconds to wait for a client to attach; None removes the rule.
        """
        rules = [rule for rule in self._failure_rules if mesh is not None and rule.mesh != mesh]
        if limit_s is not None:
            rules.append(FailureRule(mesh, limit_s))
        self._failure_rules = rules
        pending = [one.rows.debug_rules.call_one(rules) for one in self._hosts.values() if one.rows]
        for each in pending:
            # A lost process receives the rules when it has been replaced.
            with suppress(MeshError, TimeoutError):
                each.get(_RULES_S)

    @endpoint
    def close(self) -> None:
        """Stop everything that was spawned, and discard all rows."""
        self._close()

    def __cleanup__(self, error: Exception | None) -> None:
        self._close()

    def _add_hosts(self, hosts: HostMesh) -> None:
        for number, host in _numbered_hosts(hosts):
            if number not in self._hosts:
                self._hosts[number] = _HostState(number, host)
            state = self._hosts[number]
            if state.rows is None:
                self._start(state)
        self._update_copies()

    def _update_copies(self) -> None:
        """Let each host copy its latest events to the next one, which keeps them if it is lost."""
        if not self._config.replica_bytes or self._is_closed:
            return
        alive = [state for state in self._hosts.values() if state.rows is not None]
        for at, state in enumerate(alive):
            keeper = alive[(at + 1) % len(alive)] if len(alive) > 1 else None
            state.copy_to(keeper)
        for state in self._hosts.values():
            state.set_adopted(is_adopted=state.rows is None)

    def _start(self, state: _HostState) -> None:
        """Start the telemetry process of a host; record the error if that fails."""
        token = is_ours.set(True)
        state.started_at = time.monotonic()
        try:
            procs = state.host.spawn_procs(name=_PROC_NAME)
            state.procs = procs
            state.rows = procs.spawn(
                _PROC_NAME, HostRows, self._run, self._config, self._program, self._own_handle
            )
            state.name_future = state.rows.name.call_one()
            if self._failure_rules:
                state.rows.debug_rules.broadcast(self._failure_rules)
        except MeshError as error:
            state.mark_lost(cause_of(error))
        finally:
            is_ours.reset(token)

    def _restart_later(self, state: _HostState) -> None:
        """Start a lost telemetry process, but not immediately if it was started recently."""
        left_s = state.started_at + _RETRY_S - time.monotonic()
        if left_s <= 0:
            self._start(state)
        elif self._own_handle is not None:
            # A request for the hosts starts the lost processes.
            again = threading.Timer(left_s, self._own_handle.hosts.broadcast)
            again.daemon = True
            again.start()

    def _close(self) -> None:
        self._is_closed = True
        if self._hang_watch is not None:
            self._hang_watch.close()
        hosts, self._hosts = list(self._hosts.values()), {}
        collector, self._collector = self._collector, None
        # Stop the writers first, then the processes that remove the written files.
        if collector is not None:
            with suppress(MeshError):
                collector.stop().get()
        closing = [
            (state, state.rows.close.call_one()) for state in hosts if state.rows is not None
        ]
        unresponsive = [
            state
            for state, closed in closing
            if state.rows and _is_unresponsive(state.rows, closed)
        ]
        with configured(stop_grace_s=0.0):
            # A process that does not respond does not exit either, so it is killed.
            stops = [state.procs.stop() for state in unresponsive if state.procs is not None]
        stops += [state.procs.stop() for state in hosts if state.procs is not None]
        for stop in stops:
            with suppress(MeshError):
                stop.get()
        if unresponsive:
            # Remove the folder that a killed process on this host has left.
            sweep(self._config.directory)


def _is_unresponsive(rows: HostRows, closed: Future[None]) -> bool:
    """Wait until the telemetry process of a host is closed; return whether it stopped responding.

    Closing is slow if many rows are written to disk, so its duration is not a criterion.
    """
    while True:
        with suppress(MeshError, TimeoutError):
            closed.get(_ALIVE_CHECK_PERIOD_S)
        if closed.done():
            return False
        try:
            rows.is_alive.call_one().get(_ALIVE_TIMEOUT_S)
        except TimeoutError:
            return not closed.done()
        except MeshError:
            return False


def _numbered_hosts(hosts: HostMesh) -> Iterator[tuple[int, HostMesh]]:
    """Yield each host with its number."""
    row = hosts.flatten("host")
    for at, number in enumerate(current_process.host_numbers(row)):
        yield number, row.slice(host=at)
