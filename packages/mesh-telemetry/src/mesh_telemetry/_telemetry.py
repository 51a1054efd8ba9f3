"""Telemetry of a program: recorded from its start to its close, and asked in SQL meanwhile."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mesh_core import MeshError, this_proc
from mesh_telemetry._equipment import RecordedJob
from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._keeper import KEEPER_NAME, Keeper
from mesh_telemetry._moments import microseconds
from mesh_telemetry._options import TelemetryConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    import pyarrow as pa

    from mesh_core import Future, HostMesh, ProcMesh
    from mesh_telemetry._coverage import Answer, Coverage
    from mesh_telemetry._routes import Route
    from mesh_telemetry._serving import Serving
    from mesh_telemetry._stream import Stream

__all__ = ["Telemetry"]

_CLOSE_S = 60.0


class Telemetry:
    """Records a program and all processes that it spawns, and answers questions about them.

    Nothing is recorded before `start`, and nothing is sent while nobody asks. A context manager.

    Args:
        config: What is kept, and where.

    Example:
        >>> with Telemetry() as telemetry:
        ...     procs = this_host().spawn_procs({"gpus": 2})
        ...     telemetry.query("select mesh, pid, rss_bytes from procs").table
    """

    def __init__(self, config: TelemetryConfig | None = None) -> None:
        self.config: TelemetryConfig = config or TelemetryConfig()
        self._keeper: Keeper | None = None
        self._pid = 0
        self._servings: list[Serving] = []

    def start(self) -> Self:
        """Records the calling process, and every process that is spawned from there from now on.

        Raises:
            StorageError: The folder for events cannot be used.
            RuntimeError: It is started already.
        """
        if self._keeper is not None:
            raise RuntimeError("telemetry is started already: use it, or close() it first")
        run = f"{os.getpid()}-{os.urandom(8).hex()}"
        keeper = this_proc().spawn(KEEPER_NAME, Keeper, run, self.config)
        try:
            keeper.begin.call_one(keeper).get()
        except BaseException:
            with suppress(MeshError):
                _stop(keeper).get(_CLOSE_S)
            raise
        self._keeper, self._pid = keeper, os.getpid()
        return self

    def watch(self, procs: ProcMesh) -> None:
        """Records processes that were spawned before, from now on, and what they spawn.

        Twice is the same as once.

        Raises:
            TelemetryError: It is not started.
        """
        self._started().watch.call_one(procs).get()

    def tables(self) -> Mapping[str, pa.Schema]:
        """Gives the schemas of all tables, by name."""
        from mesh_telemetry._schemas import TABLES

        return TABLES

    def query(
        self,
        sql: str,
        params: Sequence[object] | Mapping[str, object] | None = None,
        *,
        as_of: float | datetime | None = None,
        timeout: float = 10.0,
        require_full: bool = False,
    ) -> Answer:
        """Asks all hosts.

        Args:
            sql: One `select`, over the tables that `tables` names.
            params: What stands for `$1`, `$2`, or for `$name`.
            as_of: Ask for rows as they were then: seconds since the epoch, or a time with a zone.
            timeout: Seconds after which a host is left out that has not answered.
            require_full: Raise unless all hosts have answered.

        Returns:
            The rows as `table`, and as `coverage` which hosts they are of.

        Raises:
            QueryError: The question is no SQL that can be answered.
            CoverageError: A host has not answered, and `require_full` is set.
            TelemetryError: It is not started.
            ValueError: `as_of` is a time without a zone, or `timeout` is not above 0.
        """
        # Here, not at the top: processes that only record must not load Arrow.
        from mesh_telemetry._asking import HostAsking
        from mesh_telemetry._query import Query

        if not timeout > 0:
            raise ValueError(f"timeout {timeout} is not above 0")
        keeper, until_us = self._started(), microseconds(as_of)
        return Query(sql, params, self.tables()).answer(
            partial(HostAsking, keeper),
            until_us=until_us,
            timeout_s=timeout,
            require_full=require_full,
        )

    def stream(
        self,
        sql: str,
        params: Sequence[object] | Mapping[str, object] | None = None,
        *,
        as_of: float | datetime | None = None,
        timeout: float = 10.0,
        require_full: bool = False,
    ) -> Stream:
        """Asks all hosts, and gives rows as hosts answer: takes what `query` takes.

        Where a question only filters one table, picks columns, or wants some rows in no order, the
        rows of a host are handed on and not kept. Else it is finished first.

        Returns:
            Batches, and as `coverage`, at their end, which hosts they are of.

        Raises:
            QueryError: The question is no SQL that can be answered.
            TelemetryError: It is not started.
            ValueError: `as_of` is a time without a zone, or `timeout` is not above 0.

        Example:
            >>> with telemetry.stream("select * from logs") as stream:
            ...     for batch in stream:
            ...         print(batch.num_rows)
        """
        from mesh_telemetry._asking import HostAsking
        from mesh_telemetry._query import Query

        if not timeout > 0:
            raise ValueError(f"timeout {timeout} is not above 0")
        keeper, until_us = self._started(), microseconds(as_of)
        return Query(sql, params, self.tables()).stream(
            partial(HostAsking, keeper),
            until_us=until_us,
            timeout_s=timeout,
            require_full=require_full,
        )

    def save(
        self, folder: str | Path, *, timeout: float = 60.0, require_full: bool = False
    ) -> Coverage:
        """Writes all rows of all hosts as they are now to a folder here, for `Past`.

        Live tables are as they were while it was written. Rows come a part at a time, so that
        memory is bounded.

        Args:
            folder: Where to; it may have what was saved before.
            timeout: Seconds that one part may take.
            require_full: Raise unless all hosts have answered.

        Returns:
            Which hosts it is of.

        Raises:
            CoverageError: No host has answered, or not all and `require_full` is set.
            StorageError: The folder cannot be written to.
            TelemetryError: It is not started.

        Example:
            >>> telemetry.save("/shared/before-the-change")
            >>> with Past("/shared/before-the-change") as past:
            ...     past.query("select name, count(*) from spans group by name").table
        """
        from mesh_telemetry._saving import save

        def ask(sql: str, as_of_us: int | None) -> Answer:
            as_of = None if as_of_us is None else as_of_us / 1e6
            return self.query(sql, as_of=as_of, timeout=timeout, require_full=require_full)

        return save(ask, Path(folder))

    def serve(self, port: int = 0, flight_port: int = 0, token: str | None = None) -> Serving:
        """Answers other programs of this machine too, until that or telemetry is closed.

        `mesh query` finds it by itself; others need its addresses and its token.

        Args:
            port: Where to listen on the loopback for HTTP; 0 for any free port.
            flight_port: Where to listen for Arrow Flight SQL; 0 for any free port.
            token: What lets others in; a random one when left out.

        Raises:
            TelemetryError: It is not started, or a port is taken.

        Example:
            >>> with telemetry.serve() as serving:
            ...     print(serving.url, serving.flight_url, serving.token)
        """
        from mesh_telemetry._serving import Serving

        self._started()
        serving = Serving(
            self._answer,
            self.tables(),
            self._routes(),
            port,
            flight_port,
            token,
            self._streamed,
        )
        self._servings.append(serving)
        return serving

    def _routes(self) -> list[Route]:
        """Gives what `serve` answers besides questions in SQL."""
        return []

    def _answer(
        self,
        sql: str,
        params: Sequence[object] | Mapping[str, object] | None,
        as_of_us: int | None,
    ) -> Answer:
        return self.query(sql, params, as_of=None if as_of_us is None else as_of_us / 1e6)

    def _streamed(
        self,
        sql: str,
        params: Sequence[object] | Mapping[str, object] | None,
        as_of_us: int | None,
    ) -> Stream:
        return self.stream(sql, params, as_of=None if as_of_us is None else as_of_us / 1e6)

    def open(self, meshes: Mapping[str, HostMesh]) -> RecordedJob:
        """Starts it, if it is not; `Job.state` of mesh-jobs calls this for `job.equip(telemetry)`.

        Args:
            meshes: All meshes of the job.

        Raises:
            StorageError: The folder for events cannot be used.
        """
        if self._keeper is None:
            self.start()
        return RecordedJob(self.close)

    def close(self) -> None:
        """Records nothing more, and forgets all rows. Twice is the same as once."""
        servings, self._servings = self._servings, []
        for serving in servings:
            serving.close()
        keeper, self._keeper = self._keeper, None
        if keeper is None or os.getpid() != self._pid:
            return
        with suppress(MeshError):
            keeper.close.call_one().get(_CLOSE_S)
        with suppress(MeshError):
            _stop(keeper).get(_CLOSE_S)

    def __enter__(self) -> Self:
        return self if self._keeper is not None else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _started(self) -> Keeper:
        if self._keeper is None:
            raise TelemetryError("telemetry is not started: call start() first")
        if os.getpid() != self._pid:
            raise TelemetryError("this is a fork of the process with telemetry: ask there")
        return self._keeper


def _stop(keeper: Keeper) -> Future[None]:
    stopped: Future[None] = keeper.stop()
    return stopped
