"""The actor in the telemetry process of a host: has the host's rows, and answers fragments."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from mesh_core import Actor, concurrent_endpoint, context, endpoint
from mesh_telemetry._errors import QueryError
from mesh_telemetry._folders import ASKED, open_host_folder, remove_if_free, spill_folder, sweep
from mesh_telemetry._stored_runs import HostNote, note_host, noted_host

if TYPE_CHECKING:
    from pathlib import Path

    from mesh_telemetry._deadline import Cancellation
    from mesh_telemetry._fragment import Fragment
    from mesh_telemetry._host_tables import HostTables
    from mesh_telemetry._options import TelemetryConfig
    from mesh_telemetry._spill import Spill

__all__ = ["HostRows"]

# How long it may take to make what is left Parquet; what is not is kept as it is.
_CLOSE_S = 30.0
# Mesh gives an actor ten seconds to clean up.
_CLEANUP_S = 4.0


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
        self._tables: HostTables | None = None
        self._making = threading.Lock()
        # Loading takes a second, which the first who asks need not wait for.
        self._loading = threading.Thread(target=self._load, name="mesh-telemetry-load", daemon=True)
        self._loading.start()

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
        # Here, not at the top: who only spawns this has no use for it.
        from mesh_telemetry._deadline import Cancellation

        cancellation = Cancellation()
        try:
            return await asyncio.to_thread(self._run, fragment, cancellation)
        except asyncio.CancelledError:
            cancellation.cancel()
            raise

    @endpoint
    async def close(self) -> None:
        """Forgets all rows of this host, but for those that are to be kept on its disk."""
        await asyncio.to_thread(self._close, _CLOSE_S)

    async def __cleanup__(self, error: Exception | None) -> None:
        await asyncio.to_thread(self._close, _CLEANUP_S)

    def _run(self, fragment: Fragment, cancellation: Cancellation) -> bytes:
        # Here, not at the top: who only spawns this must not load Arrow.
        from mesh_telemetry._engine import run_fragment
        from mesh_telemetry._fragment import QUERY_FAULT, TOO_MUCH

        tables = self._made()
        tables.refresh()
        try:
            body: bytes = run_fragment(fragment, tables, cancellation)
        except QueryError as error:
            if str(error).startswith((QUERY_FAULT, TOO_MUCH)):
                raise
            raise QueryError(f"{QUERY_FAULT}{error}") from None
        return body

    def _made(self) -> HostTables:
        from mesh_telemetry._host_tables import HostTables

        with self._making:
            if self._tables is None:
                scratch = self._folder / ASKED
                scratch.mkdir(mode=0o700, exist_ok=True)
                self._tables = HostTables(
                    self._folder,
                    cache_bytes=self._config.host_cache_bytes,
                    retention_s=self._config.retention_s,
                    spill=self._spilled,
                    own_proc=self._own_proc,
                    scratch=scratch,
                )
            return self._tables

    def _note_spilled(self, folder: Path) -> None:
        """Says on disk whose rows these are; it may be in place of one that was lost."""
        before = noted_host(folder)
        if before is not None:
            self._note = self._note._replace(began_us=before.began_us)
        with suppress(OSError):
            note_host(folder, self._note)

    def _load(self) -> None:
        """Loads Arrow and DataFusion; then what is to be kept on disk can be written there."""
        from mesh_telemetry import _engine as _engine
        from mesh_telemetry import _host_tables as _host_tables

        if self._spilled is not None:
            from mesh_telemetry._spill import Spill

            with self._making:
                if not self._is_over:
                    self._spill = Spill(self._folder, self._spilled, self._note, self._config)

    def _close(self, budget_s: float) -> None:
        self._loading.join(budget_s)
        with self._making:
            is_over, self._is_over = self._is_over, True
            spill, self._spill = self._spill, None
        if spill is not None:
            spill.close(budget_s)
        if not is_over:
            self._lock.close()
            remove_if_free(self._folder)
