"""The actor in the telemetry process of a host: has the host's rows, and answers fragments."""

from __future__ import annotations

import asyncio
import shutil
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from mesh_core import Actor, concurrent_endpoint, context, endpoint
from mesh_telemetry._debug.host_debugging import HostDebugging
from mesh_telemetry._disk.stored_runs import HostNote, note_host, noted_host
from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._events.folders import (
    ASKED,
    open_host_folder,
    remove_if_free,
    spill_folder,
    sweep,
)
from mesh_telemetry._events.stops import ask_to_stop
from mesh_telemetry._otlp.options import OtlpConfig
from mesh_telemetry._query.query_limits import QueryLimits
from mesh_telemetry._query.question import failure_reply
from mesh_telemetry._query_process.limits import SLACK_BYTES
from mesh_telemetry._query_process.pool import FRAGMENTS, OUTSIDE, OWN, QueryPool, Task

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from mesh_telemetry._debug.failure_rules import FailureRule
    from mesh_telemetry._debug.host_debugging import Said
    from mesh_telemetry._disk.spill import Spill
    from mesh_telemetry._keeper import HostHandle, Keeper
    from mesh_telemetry._options import TelemetryConfig
    from mesh_telemetry._otlp.export import OtlpExport
    from mesh_telemetry._stacks.dump import DumpOptions, HostDump
    from mesh_telemetry._stacks.flame_graph import FlameOptions
    from mesh_telemetry._stacks.host_stacks import HostStacks

__all__ = ["HostRows"]

# How long it may take to make what is left Parquet; what is not is kept as it is.
_CLOSE_S = 30.0
# Mesh gives an actor ten seconds to clean up.
_CLEANUP_S = 4.0
_FRAGMENT_BYTES_MAX = QueryLimits().host_memory_max_bytes + SLACK_BYTES
_QUESTION_BYTES_MAX = QueryLimits().memory_max_bytes + SLACK_BYTES


class HostRows(Actor):
    """Answers what is asked of one host.

    Args:
        run: The name of the run.
        config: What is kept.
        program: What is recorded, as it was started.
    """

    def __init__(self, run: str, config: TelemetryConfig, program: str) -> None:
        self._config = config
        self._place = context().actor_instance.proc_id
        sweep(config.directory)
        host = self._place.host
        self._spilled = spill_folder(config.spill, run, host)
        self._folder, self._lock = open_host_folder(config.directory, run, host, self._spilled)
        self._own_proc = host << 32 | self._place.slot
        self._note = HostNote(
            host,
            self._place.host_name,
            program,
            time.time_ns() // 1000,
            self._own_proc,
            str(self._folder),
        )
        if self._spilled is not None:
            self._note_spilled(self._spilled)
        self._spill: Spill | None = None
        self._is_over = False
        self._stacks: HostStacks | None = None
        self._debugging = HostDebugging(self._folder)
        self._making = threading.Lock()
        self._export: OtlpExport | None = None
        self._scratch = self._folder / ASKED
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
        # Loading takes a second, which the first who asks need not wait for.
        self._loading = threading.Thread(target=self._load, name="mesh-telemetry-load", daemon=True)
        self._loading.start()

    @endpoint
    async def name(self) -> str:
        """Says which machine it is on."""
        return self._place.host_name

    @concurrent_endpoint
    async def run(self, fragment: bytes, deadline_s: float) -> bytes:
        """Runs a fragment, pickled, over the rows of this host; gives an Arrow stream.

        It runs in a query process, which is killed when the call is cancelled.

        Raises:
            QueryError: It cannot be run.
            TelemetryError: It has not ended in time.
        """
        return await self._queries.run(Task(FRAGMENTS, fragment, deadline_s, _FRAGMENT_BYTES_MAX))

    @concurrent_endpoint
    async def answer(
        self,
        request: bytes,
        timeout_s: float,
        is_outside: bool,
        others: tuple[Keeper, tuple[HostHandle, ...]] | None,
    ) -> bytes:
        """Answers a question in a query process, which is killed when the call is cancelled.

        Args:
            request: The question as a pickled `Request`.
            timeout_s: When to kill the process, in seconds.
            is_outside: Whether another program asks.
            others: All hosts, and who has to know which is lost; None if there is this one only.

        Returns:
            A packed `Reply`.
        """
        # Here, not at the top: what it needs imports this module.
        from mesh_telemetry._query.host_asking import HostAsking

        def ask_hosts(fragment: bytes, deadline_s: float) -> HostAsking:
            assert others is not None, "there are several hosts"
            return HostAsking(*others, fragment, deadline_s)

        work = OUTSIDE if is_outside else OWN
        task = Task(work, request, timeout_s, _QUESTION_BYTES_MAX, ask_hosts)
        try:
            return await self._queries.run(task)
        except TelemetryError as error:
            return failure_reply(error)

    @concurrent_endpoint
    async def store_pyspy_dump(self, dump_id: str, proc: str, said: str) -> None:
        """Keeps the dump of a process that somebody else has made with py-spy.

        Raises:
            TelemetryError: It is no dump, or there is no room for it.
        """
        await asyncio.to_thread(lambda: self._made_stacks().store(dump_id, proc, said))

    @concurrent_endpoint
    async def dump_stacks(
        self, dump_id: str, procs: frozenset[str] | None, options: DumpOptions, timeout_s: float
    ) -> HostDump:
        """Takes and keeps the stacks of processes of this host; of all where none is named.

        Raises:
            PySpyError: py-spy is not on this host.
        """
        stacks = await asyncio.to_thread(self._made_stacks)
        return await stacks.dump(dump_id, procs, options, timeout_s)

    @concurrent_endpoint
    async def record_stacks(self, proc: str, options: FlameOptions) -> str:
        """Records what a process of this host runs; gives the flame graph as SVG.

        Raises:
            PySpyError: It could not be recorded.
        """
        stacks = await asyncio.to_thread(self._made_stacks)
        return await stacks.record(proc, options)

    @concurrent_endpoint
    async def stop_mesh(self, slot: int, mesh_id: int, by: str) -> dict[str, str]:
        """Has a process of this host stop a mesh that it owns; see `_stops.ask_to_stop`."""
        return await asyncio.to_thread(ask_to_stop, self._folder, slot, mesh_id, by)

    @concurrent_endpoint
    async def debug_open(self, session: str, greeting: dict[str, Any]) -> str | None:
        """Attaches to a debug session; gives the name of the connection, None if it is not here.

        Raises:
            DebugError: Somebody else is attached, or it ends just now.
        """
        return await self._debugging.open(session, greeting)

    @concurrent_endpoint
    async def debug_send(self, connection: str, piece: bytes) -> bool:
        """Sends bytes to a debug session; says whether it is still there."""
        return await self._debugging.send(connection, piece)

    @concurrent_endpoint
    async def debug_receive(self, connection: str, wait_s: float) -> bytes | None:
        """Gives what a debug session has sent; None once it has ended."""
        return await self._debugging.receive(connection, wait_s)

    @concurrent_endpoint
    async def debug_close(self, connection: str) -> None:
        """Leaves a debug session."""
        self._debugging.close(connection)

    @concurrent_endpoint
    async def debug_run(self, sessions: list[str], command: str, timeout_s: float) -> list[Said]:
        """Runs a command in those debug sessions that are here."""
        return await self._debugging.run(sessions, command, timeout_s)

    @concurrent_endpoint
    async def debug_release(self, sessions: list[str]) -> list[Said]:
        """Lets those debug sessions go on that are here."""
        return await self._debugging.release(sessions)

    @concurrent_endpoint
    async def debug_rules(self, rules: list[FailureRule]) -> None:
        """Says which failures are to stand here from now on."""
        await self._debugging.set_rules(rules)

    @concurrent_endpoint
    async def is_alive(self) -> bool:
        """Returns True, also while this is being closed."""
        return True

    @concurrent_endpoint
    async def close(self) -> None:
        """Forgets all rows of this host, but for those that are to be kept on its disk."""
        await self._ended(_CLOSE_S)

    async def __cleanup__(self, error: Exception | None) -> None:
        await self._ended(_CLEANUP_S)

    async def _ended(self, limit_s: float) -> None:
        if self._stacks is not None:
            await self._stacks.close()
        await self._queries.close()
        await asyncio.to_thread(self._close, limit_s)

    def _remove_links(self, pid: int) -> None:
        """Removes what a query process has left that was killed."""
        shutil.rmtree(self._scratch / str(pid), ignore_errors=True)

    def _note_spilled(self, folder: Path) -> None:
        """Says on disk whose rows these are; it may be in place of one that was lost."""
        before = noted_host(folder)
        if before is not None:
            self._note = self._note._replace(began_us=before.began_us)
        with suppress(OSError):
            note_host(folder, self._note)

    def _load(self) -> None:
        """Loads Arrow; then rows can be written to disk, and exported."""
        self._made_stacks()
        if self._spilled is not None:
            from mesh_telemetry._disk.spill import Spill

            with self._making:
                if not self._is_over:
                    self._spill = Spill(self._folder, self._spilled, self._note, self._config)
        if isinstance(self._config.otlp, OtlpConfig):
            self._begin_export(self._config.otlp)

    def _begin_export(self, config: OtlpConfig) -> None:
        try:
            from mesh_telemetry._otlp.export import OtlpExport
        except ImportError as error:
            text = f"mesh-telemetry: nothing is exported from {self._place.host_name}"
            print(f"{text}: {error}: install mesh-telemetry[otel] there", file=sys.stderr)
            return
        with self._making:
            if not self._is_over:
                self._export = OtlpExport(config, self._folder, self._spilled, self._own_proc)

    def _close(self, budget_s: float) -> None:
        self._debugging.close_all()
        self._loading.join(budget_s)
        with self._making:
            is_over, self._is_over = self._is_over, True
            spill, self._spill = self._spill, None
            export, self._export = self._export, None
        if export is not None:
            # First, as it reads what is moved to disk then.
            export.close(budget_s)
        if spill is not None:
            spill.close(budget_s)
        if not is_over:
            self._lock.close()
            remove_if_free(self._folder)

    def _made_stacks(self) -> HostStacks:
        from mesh_telemetry._stacks.host_stacks import HostStacks

        with self._making:
            if self._stacks is None:
                self._stacks = HostStacks(self._folder, self._place.host_name, self._config)
            return self._stacks
