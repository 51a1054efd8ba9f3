"""The actor in the telemetry process of a host: has the host's rows, and answers fragments."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mesh_core import Actor, concurrent_endpoint, context, endpoint
from mesh_telemetry._deadline import Late, within_async
from mesh_telemetry._errors import QueryError, TelemetryError
from mesh_telemetry._folders import open_host_folder, remove_if_free, sweep

if TYPE_CHECKING:
    from mesh_telemetry._fragment import Fragment
    from mesh_telemetry._host_tables import HostTables
    from mesh_telemetry._options import TelemetryConfig

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
        self._making = threading.Lock()
        # Loading takes a second, which the first who asks need not wait for.
        threading.Thread(target=_load, name="mesh-telemetry-load", daemon=True).start()

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
        deadline = time.monotonic() + fragment.deadline_s
        try:
            return await within_async(lambda: self._run(fragment, deadline), deadline)
        except Late:
            raise TelemetryError(
                f"not done after {fragment.deadline_s:g} s: allow more time, or filter more"
            ) from None

    @endpoint
    async def close(self) -> None:
        """Forgets all rows of this host."""
        self._close()

    async def __cleanup__(self, error: Exception | None) -> None:
        self._close()

    def _run(self, fragment: Fragment, deadline: float) -> bytes:
        # Here, not at the top: who only spawns this must not load Arrow.
        from mesh_telemetry._added_tables import RowsWithAdded
        from mesh_telemetry._engine import run_until
        from mesh_telemetry._fragment import QUERY_FAULT, TOO_MUCH

        tables = self._made().refreshed()
        try:
            rows = RowsWithAdded(tables, fragment.added)
            body: bytes = run_until(fragment, rows, deadline, tables.same_rows)
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

    def _close(self) -> None:
        self._lock.close()
        remove_if_free(self._folder)


def _load() -> None:
    """Loads Arrow and DataFusion."""
    from mesh_telemetry import _engine as _engine
    from mesh_telemetry import _host_tables as _host_tables
