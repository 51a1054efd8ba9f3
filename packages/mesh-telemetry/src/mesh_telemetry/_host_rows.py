"""The actor in the telemetry process of a host: has the host's rows, and answers fragments."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from mesh_core import Actor, concurrent_endpoint, context, endpoint
from mesh_telemetry._errors import QueryError
from mesh_telemetry._folders import open_host_folder, remove_if_free, sweep

if TYPE_CHECKING:
    from mesh_telemetry._flame_graph import FlameOptions
    from mesh_telemetry._fragment import Fragment
    from mesh_telemetry._host_stacks import HostStacks
    from mesh_telemetry._host_tables import HostTables
    from mesh_telemetry._options import TelemetryConfig
    from mesh_telemetry._stack_dump import DumpOptions, HostDump

__all__ = ["HostRows"]


class HostRows(Actor):
    """Answers what is asked of one host.

    Args:
        run: The name of the run.
        config: What is kept.
    """

    def __init__(self, run: str, config: TelemetryConfig) -> None:
        self._config = config
        self._place = context().actor_instance.proc_id
        sweep(config.directory)
        self._folder, self._lock = open_host_folder(config.directory, run, self._place.host)
        self._spill = None
        if config.spill is not None:
            self._spill = Path(config.spill) / run / str(self._place.host)
        self._tables: HostTables | None = None
        self._stacks: HostStacks | None = None
        self._making = threading.Lock()
        # Loading takes a second, which the first who asks need not wait for.
        threading.Thread(target=self._load, name="mesh-telemetry-load", daemon=True).start()

    @endpoint
    async def name(self) -> str:
        """Says which machine it is on."""
        return self._place.host_name

    @concurrent_endpoint
    async def run(self, fragment: Fragment) -> bytes:
        """Runs a fragment of a question over the rows of this host; gives an Arrow stream.

        Raises:
            QueryError: It cannot be run.
        """
        return await asyncio.to_thread(self._run, fragment)

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

    @endpoint
    async def close(self) -> None:
        """Forgets all rows of this host."""
        await self._close()

    async def __cleanup__(self, error: Exception | None) -> None:
        await self._close()

    def _run(self, fragment: Fragment) -> bytes:
        # Here, not at the top: who only spawns this must not load Arrow.
        from mesh_telemetry._engine import run_fragment
        from mesh_telemetry._fragment import QUERY_FAULT, TOO_MUCH

        tables = self._made()
        tables.refresh()
        try:
            body: bytes = run_fragment(fragment, tables)
        except QueryError as error:
            if str(error).startswith((QUERY_FAULT, TOO_MUCH)):
                raise
            raise QueryError(f"{QUERY_FAULT}{error}") from None
        return body

    def _made(self) -> HostTables:
        from mesh_telemetry._host_tables import HostTables

        with self._making:
            if self._tables is None:
                self._tables = HostTables(
                    self._folder,
                    cache_bytes=self._config.host_cache_bytes,
                    retention_s=self._config.retention_s,
                    spill=self._spill,
                    own_proc=self._place.host << 32 | self._place.slot,
                )
            return self._tables

    def _made_stacks(self) -> HostStacks:
        from mesh_telemetry._host_stacks import HostStacks

        with self._making:
            if self._stacks is None:
                self._stacks = HostStacks(self._folder, self._place.host_name, self._config)
            return self._stacks

    async def _close(self) -> None:
        if self._stacks is not None:
            await self._stacks.close()
        self._lock.close()
        remove_if_free(self._folder)

    def _load(self) -> None:
        """Loads Arrow and DataFusion, and looks after dumps that are there already."""
        from mesh_telemetry import _engine as _engine
        from mesh_telemetry import _host_tables as _host_tables

        self._made_stacks()
