"""The actor in the telemetry process of a host, which runs queries over the host's rows."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from mesh_core import Actor, MeshError, concurrent_endpoint, context, endpoint
from mesh_telemetry._debug.host_debugging import HostDebugging
from mesh_telemetry._disk.stored_runs import HostMetadata, read_host_metadata, write_host_metadata
from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._events.folders import (
    SCRATCH_FOLDER,
    open_host_folder,
    remove_if_free,
    spill_folder,
    sweep,
)
from mesh_telemetry._events.proc_folder import proc_folders, script_folders
from mesh_telemetry._events.stops import request_stop
from mesh_telemetry._hangs.process_state import process_states
from mesh_telemetry._hangs.stall_monitor import StallMonitor
from mesh_telemetry._query.host_requests import HostRequests
from mesh_telemetry._query.query_limits import QueryLimits
from mesh_telemetry._query.query_request import failure_reply
from mesh_telemetry._query_process.limits import SLACK_BYTES
from mesh_telemetry._query_process.pool import FRAGMENTS, OUTSIDE, OWN, QueryPool, Task
from mesh_telemetry._replicas.replica import Replica
from mesh_telemetry._replicas.replicator import Replicator

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from mesh_telemetry._debug.failure_rules import FailureRule
    from mesh_telemetry._debug.host_debugging import CommandResult
    from mesh_telemetry._events.proc_folder import CachedFolder
    from mesh_telemetry._hangs.process_state import ProcessState
    from mesh_telemetry._heap.options import HeapOptions
    from mesh_telemetry._heap.snapshot import HostHeap
    from mesh_telemetry._hosts.coordinator import Coordinator
    from mesh_telemetry._hosts.host_handle import HostHandle
    from mesh_telemetry._hosts.host_services import HostServices
    from mesh_telemetry._options import TelemetryConfig
    from mesh_telemetry._prometheus.host_metrics import HostSnapshot
    from mesh_telemetry._replicas.folder_changes import Change
    from mesh_telemetry._stacks.dump import DumpOptions, HostDump
    from mesh_telemetry._stacks.flame_graph import FlameOptions

__all__ = ["HostRows"]

# Limit for converting the remaining rows to Parquet; rows that are not converted are kept as they
# are.
_CLOSE_S = 30.0
# Mesh limits the cleanup of an actor to ten seconds.
_CLEANUP_S = 4.0
_FRAGMENT_BYTES_MAX = QueryLimits().host_memory_max_bytes + SLACK_BYTES
_QUERY_BYTES_MAX = QueryLimits().memory_max_bytes + SLACK_BYTES


class HostRows(Actor):
    """Serves requests to the telemetry process of one host.

    Args:
        run: The name of the run.
        config: The options.
        program: The command line of the recorded program.
        coordinator: The actor that is notified when collectives are slow.
    """

    def __init__(
        self,
        run: str,
        config: TelemetryConfig,
        program: str,
        coordinator: Coordinator | None = None,
    ) -> None:
        self._config = config
        self._actor_process = context().actor_instance.proc_id
        sweep(config.directory)
        host = self._actor_process.host
        self._spilled = spill_folder(config.spill, run, host)
        self._folder, self._lock = open_host_folder(config.directory, run, host, self._spilled)
        self._own_proc = host << 32 | self._actor_process.slot
        self._metadata = HostMetadata(
            host,
            self._actor_process.host_name,
            program,
            time.time_ns() // 1000,
            self._own_proc,
            str(self._folder),
        )
        if self._spilled is not None:
            self._write_metadata(self._spilled)
        self._known_folders: dict[tuple[Path, str], CachedFolder] = {}
        self._stalls: StallMonitor | None = None
        if coordinator is not None and config.hang_timeout_s is not None:
            self._stalls = StallMonitor(
                self._folder, config.hang_timeout_s, partial(_notify, coordinator)
            )
        self._replicator = Replicator(host, self._folder, config.replica_bytes)
        self._is_over = False
        self._services: HostServices | None = None
        self._debugging = HostDebugging(self._folder)
        self._services_lock = threading.Lock()
        self._scratch = self._folder / SCRATCH_FOLDER
        self._scratch.mkdir(mode=0o700, exist_ok=True)
        self._queries = QueryPool(
            {
                "folder": str(self._folder),
                "cache_bytes": config.host_cache_bytes,
                "retention_s": config.retention_s,
                "spill": None if self._spilled is None else str(self._spilled),
                "own_proc": self._own_proc,
                "scratch": str(self._scratch),
            },
            self._remove_links,
        )
        self._queries.start()
        # Loading takes a second. It starts now, so that the first query need not wait for it.
        self._loading = threading.Thread(
            target=self._start_services, name="mesh-telemetry-load", daemon=True
        )
        self._loading.start()

    @endpoint
    async def name(self) -> str:
        """Return the host name of the machine."""
        return self._actor_process.host_name

    @concurrent_endpoint
    async def run(self, fragment: bytes, deadline_s: float) -> bytes:
        """Run a pickled fragment over the rows of this host; return an Arrow stream.

        It runs in a query process, which is killed if the call is cancelled.

        Raises:
            QueryError: The fragment cannot be run.
            TelemetryError: The deadline has passed.
        """
        return await self._queries.run(Task(FRAGMENTS, fragment, deadline_s, _FRAGMENT_BYTES_MAX))

    @concurrent_endpoint
    async def query(
        self,
        request: bytes,
        timeout_s: float,
        is_outside: bool,
        others: tuple[Coordinator, tuple[HostHandle, ...]] | None,
    ) -> bytes:
        """Run a query in a query process, which is killed if the call is cancelled.

        Args:
            request: The query as a pickled `Request`.
            timeout_s: Seconds after which the process is killed.
            is_outside: Whether the query comes from another program.
            others: The coordinator, which must be notified of lost hosts, and all hosts; None if
                this is the only host.

        Returns:
            A packed `Reply`.
        """

        def run_on_hosts(fragment: bytes, deadline_s: float) -> HostRequests:
            assert others is not None, "there are several hosts"
            return HostRequests(*others, fragment, deadline_s)

        work = OUTSIDE if is_outside else OWN
        task = Task(work, request, timeout_s, _QUERY_BYTES_MAX, run_on_hosts)
        try:
            return await self._queries.run(task)
        except TelemetryError as error:
            return failure_reply(error)

    @concurrent_endpoint
    async def process_states(self) -> list[ProcessState]:
        """Return the state of each recorded process of this host, for the search for hangs."""
        return await asyncio.to_thread(self._process_states)

    @concurrent_endpoint
    async def copy_to(self, other: HostRows | None) -> None:
        """Copy the latest events of this host to another one from now on; None stops copying."""
        self._replicator.set_target(other)

    @concurrent_endpoint
    async def store_replica(self, host: int, changes: list[Change]) -> None:
        """Store a part of the copy of another host.

        Raises:
            OSError: It cannot be written.
        """
        await asyncio.to_thread(self._replica(host).apply, changes)

    @concurrent_endpoint
    async def adopt(self, host: int, is_adopted: bool) -> None:
        """Set whether the rows of this host include the copy of another one, which was lost."""
        self._replica(host).set_adopted(is_adopted=is_adopted)

    @concurrent_endpoint
    async def metrics(self, count_s: float) -> HostSnapshot:
        """Return the metrics of this host for Prometheus.

        Args:
            count_s: The time for counting new events, in seconds.

        Raises:
            TelemetryError: This process is overloaded.
        """
        return await asyncio.to_thread(lambda: self._loaded_services().metrics.snapshot(count_s))

    @concurrent_endpoint
    async def store_pyspy_dump(self, dump_id: str, proc: str, dump_json: str) -> None:
        """Store a dump of a process that another program has made with py-spy.

        Raises:
            TelemetryError: The text is not a dump, or the space is insufficient.
        """
        await asyncio.to_thread(
            lambda: self._loaded_services().stacks.store(dump_id, proc, dump_json)
        )

    @concurrent_endpoint
    async def dump_stacks(
        self, dump_id: str, procs: frozenset[str] | None, options: DumpOptions, timeout_s: float
    ) -> HostDump:
        """Take and store the stacks of processes of this host; of all processes if `procs` is None.

        Raises:
            PySpyError: py-spy is not installed on this host.
        """
        services = await asyncio.to_thread(self._loaded_services)
        return await services.stacks.dump(dump_id, procs, options, timeout_s)

    @concurrent_endpoint
    async def record_stacks(self, proc: str, options: FlameOptions) -> str:
        """Sample the stacks of a process of this host; return the flame graph as SVG.

        Raises:
            PySpyError: The process could not be sampled.
        """
        services = await asyncio.to_thread(self._loaded_services)
        return await services.stacks.record(proc, options)

    @concurrent_endpoint
    async def snapshot_heap(self, snapshot_id: str, proc: str, options: HeapOptions) -> HostHeap:
        """Track the allocations of a process of this host; store and return the rows.

        Raises:
            HeapError: No snapshot could be taken.
        """
        services = await asyncio.to_thread(self._loaded_services)
        return await services.heaps.take(snapshot_id, proc, options)

    @concurrent_endpoint
    async def stop_mesh(self, slot: int, mesh_id: int, by: str) -> dict[str, str]:
        """Request that a process of this host stops a mesh that it owns; see `request_stop`."""
        return await asyncio.to_thread(request_stop, self._folder, slot, mesh_id, by)

    @concurrent_endpoint
    async def debug_open(self, session: str, greeting: dict[str, Any]) -> str | None:
        """Attach to a debug session.

        Returns:
            The name of the connection, or None if the session is not on this host.

        Raises:
            DebugError: Another client is attached, or the session is ending.
        """
        return await self._debugging.open(session, greeting)

    @concurrent_endpoint
    async def debug_send(self, connection: str, piece: bytes) -> bool:
        """Send bytes to a debug session; return whether it still exists."""
        return await self._debugging.send(connection, piece)

    @concurrent_endpoint
    async def debug_receive(self, connection: str, wait_s: float) -> bytes | None:
        """Return the bytes that a debug session has sent; None after it has ended."""
        return await self._debugging.receive(connection, wait_s)

    @concurrent_endpoint
    async def debug_close(self, connection: str) -> None:
        """Detach from a debug session."""
        self._debugging.close(connection)

    @concurrent_endpoint
    async def debug_run(
        self, sessions: list[str], command: str, timeout_s: float
    ) -> list[CommandResult]:
        """Run a command in the given debug sessions that are on this host."""
        return await self._debugging.run(sessions, command, timeout_s)

    @concurrent_endpoint
    async def debug_release(self, sessions: list[str]) -> list[CommandResult]:
        """Let the given debug sessions that are on this host continue."""
        return await self._debugging.release(sessions)

    @concurrent_endpoint
    async def debug_rules(self, rules: list[FailureRule]) -> None:
        """Set the rules for pausing at failures on this host."""
        await self._debugging.set_rules(rules)

    @concurrent_endpoint
    async def is_alive(self) -> bool:
        """Return True, even while the process is being closed."""
        return True

    @concurrent_endpoint
    async def close(self) -> None:
        """Discard all rows of this host, except rows that are kept on disk."""
        await self._close_all(_CLOSE_S)

    async def __cleanup__(self, error: Exception | None) -> None:
        await self._close_all(_CLEANUP_S)

    def _replica(self, host: int) -> Replica:
        return Replica(self._folder, host, self._config.replica_bytes)

    def _process_states(self) -> list[ProcessState]:
        folders = proc_folders(self._folder, self._spilled, self._known_folders)
        return process_states([*folders, *script_folders(self._folder)])

    async def _close_all(self, limit_s: float) -> None:
        if self._stalls is not None:
            await asyncio.to_thread(self._stalls.close)
        await asyncio.to_thread(self._replicator.close)
        if self._services is not None:
            await self._services.stacks.close()
            await self._services.heaps.close()
        await self._queries.close()
        await asyncio.to_thread(self._close, limit_s)

    def _remove_links(self, pid: int) -> None:
        """Remove the files of a killed query process."""
        shutil.rmtree(self._scratch / str(pid), ignore_errors=True)

    def _write_metadata(self, folder: Path) -> None:
        """Write to disk which host the rows belong to; keep the start time of a predecessor."""
        before = read_host_metadata(folder)
        if before is not None:
            self._metadata = self._metadata._replace(began_us=before.began_us)
        with suppress(OSError):
            write_host_metadata(folder, self._metadata)

    def _start_services(self) -> None:
        """Load Arrow, then start writing to disk and exporting."""
        services = self._loaded_services()
        with self._services_lock:
            if not self._is_over:
                services.start()

    def _loaded_services(self) -> HostServices:
        # Arrow takes 0.2 s and 45 MB. Recorded processes and the program load this module too, but
        # only the telemetry process of a host needs its services.
        from mesh_telemetry._hosts.host_services import HostServices  # noqa: PLC0415

        with self._services_lock:
            if self._services is None:
                self._services = HostServices(
                    self._folder, self._spilled, self._metadata, self._config
                )
            return self._services

    def _close(self, budget_s: float) -> None:
        self._debugging.close_all()
        self._loading.join(budget_s)
        with self._services_lock:
            is_over, self._is_over = self._is_over, True
            services = self._services
        if services is not None:
            services.close(budget_s)
        if not is_over:
            self._lock.close()
            remove_if_free(self._folder)


def _notify(coordinator: Coordinator) -> None:
    with suppress(MeshError):
        coordinator.stalled.broadcast()
