"""Telemetry of a program: recorded from its start to its close, and asked in SQL meanwhile."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mesh_core import MeshError, this_proc
from mesh_telemetry._equipment import RecordedJob
from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._keeper import KEEPER_NAME, Keeper
from mesh_telemetry._options import TelemetryConfig, with_otlp
from mesh_telemetry._query.moments import microseconds
from mesh_telemetry._watching import watch_until_begun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime
    from types import TracebackType
    from typing import Any, Self

    import pyarrow as pa

    from mesh_core import Future, HostMesh, ProcMesh
    from mesh_telemetry._debug.debugging import DebugConsole, Debugging
    from mesh_telemetry._profile.file import TraceFile
    from mesh_telemetry._query.client import Asking, QueryClient
    from mesh_telemetry._query.coverage import Answer, Coverage
    from mesh_telemetry._query.deadline import Cancellation
    from mesh_telemetry._query.stream import Stream
    from mesh_telemetry._serve.routes import Route
    from mesh_telemetry._serve.serving import Serving
    from mesh_telemetry._sources import SourceTable
    from mesh_telemetry._stacks.dump import StackDump
    from mesh_telemetry._stacks.flame_graph import FlameGraph, FlameOptions

__all__ = ["Telemetry"]

_CLOSE_S = 60.0
# For one of the questions of a trace.
_LONG_S = 60.0


class Telemetry:
    """Records a program and all processes that it spawns, and answers questions about them.

    Nothing is recorded before `start`, and nothing is sent while nobody asks. A context manager.

    Args:
        config: What is kept, and where.
        tables: Tables of the program's own, by name: rows of them are told with
            `mesh_core.spi.record_row`, in any process.

    Raises:
        ValueError: One of the tables has a name that is taken, or a column that is none.

    Example:
        >>> with Telemetry() as telemetry:
        ...     procs = this_host().spawn_procs({"gpus": 2})
        ...     telemetry.query("select mesh, pid, rss_bytes from procs").table
    """

    def __init__(
        self,
        config: TelemetryConfig | None = None,
        *,
        tables: Mapping[str, SourceTable] | None = None,
    ) -> None:
        self.config: TelemetryConfig = config or TelemetryConfig()
        self._own_tables = dict(tables or {})
        if self._own_tables:
            self.tables()
        self._keeper: Keeper | None = None
        self._pid = 0
        self._servings: list[Serving] = []
        self._client: QueryClient | None = None

    def start(self) -> Self:
        """Records the calling process, and every process that is spawned from there from now on.

        Raises:
            StorageError: The folder for events cannot be used.
            TelemetryError: It is to export, and what that takes is not installed.
            ValueError: It is to export as variables say, and one of them cannot be read.
            RuntimeError: It is started already.
        """
        if self._keeper is not None:
            raise RuntimeError("telemetry is started already: use it, or close() it first")
        run = f"{os.getpid()}-{os.urandom(16).hex()}"
        config = with_otlp(self.config, os.environ)
        keeper = this_proc().spawn(KEEPER_NAME, Keeper, run, config)
        try:
            keeper.begin.call_one(keeper).get()
        except BaseException:
            with suppress(MeshError):
                _stop(keeper).get(_CLOSE_S)
            raise
        self._keeper, self._pid = keeper, os.getpid()
        return self

    def watch(self, procs: ProcMesh, *, timeout: float = 30.0) -> None:
        """Records processes that were spawned before, from now on, and what they spawn.

        What happens there after it has returned is recorded. Twice is the same as once.

        Args:
            procs: Which.
            timeout: Seconds in which all of them have to begin.

        Raises:
            TelemetryError: It is not started, or some processes are not recorded: the message says
                why. The others are, and watching again tries it again.
            ValueError: `timeout` is not above 0.

        Example:
            >>> telemetry.watch(procs)
            >>> trainers.step.call(1).get()
            >>> telemetry.query("select * from messages where endpoint = 'step'").table
        """
        if not timeout > 0:
            raise ValueError(f"timeout {timeout} is not above 0")
        watch_until_begun(self._started(), procs, timeout)

    def tables(self) -> Mapping[str, pa.Schema]:
        """Gives the schemas of all tables, by name."""
        from mesh_telemetry._rows.added_tables import table_docs
        from mesh_telemetry._rows.schemas import schema_of

        return {name: schema_of(doc) for name, doc in table_docs(self._own_tables).items()}

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
        client, asking = self._asking(timeout, require_full)
        question = client.question(sql, params, microseconds(as_of), "arrow", asking)
        return client.answer(question, asking)

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
        client, asking = self._asking(timeout, require_full)
        question = client.question(sql, params, microseconds(as_of), "stream", asking)
        return client.stream(question, asking)

    def _asking(self, timeout: float, require_full: bool) -> tuple[QueryClient, Asking]:
        from mesh_telemetry._query.client import Asking

        if not timeout > 0:
            raise ValueError(f"timeout {timeout} is not above 0")
        return self._asker(), Asking(timeout, require_full)

    def _asker(self) -> QueryClient:
        # Here, not at the top: processes that only record must not load Arrow.
        from mesh_telemetry._query.client import QueryClient

        keeper = self._started()
        if self._client is None:
            self._client = QueryClient(keeper, self._own_tables, list(self.tables()))
        return self._client

    def pyspy_dump(
        self,
        where: str | Sequence[str] | None = None,
        *,
        native: bool = False,
        locals: bool = False,
        subprocesses: bool = False,
        timeout: float = 10.0,
    ) -> StackDump:
        """Takes the stacks of all recorded processes with py-spy, and keeps them for queries.

        It reads their memory from outside: also of one that holds the lock of its interpreter for
        ever. The rows are in `pyspy_dumps`, `pyspy_stack_traces`, `pyspy_frames` and
        `pyspy_local_variables`.

        Args:
            where: Of which: a condition in SQL over the table `procs`, or their names, as `0.3`.
            native: Also what runs in C and the like. The processes stop for it, some milliseconds.
            locals: Also local variables.
            subprocesses: Also of the processes that they have started.
            timeout: Seconds after which processes are left out that py-spy has not read.

        Returns:
            The name of the dump, and of which processes it is.

        Raises:
            PySpyError: No stacks could be taken.
            QueryError: `where` is no condition.
            TelemetryError: It is not started.

        Example:
            >>> dump = telemetry.pyspy_dump("mesh = 'trainers'")
            >>> telemetry.query(
            ...     "select proc, name, line from pyspy_frames where dump_id = $1 "
            ...     "and frame_depth = 0", [dump.dump_id]
            ... ).table
        """
        from mesh_telemetry._stacks.dump import DumpOptions
        from mesh_telemetry._stacks.requests import dump_of

        if not timeout > 0:
            raise ValueError(f"timeout {timeout} is not above 0")
        procs = where
        if isinstance(where, str):
            sql = f"select proc from procs where state <> 'dead' and (\n{where}\n)"
            procs = self.query(sql, timeout=timeout).table.column("proc").to_pylist()
        options = DumpOptions(native, locals, subprocesses)
        return dump_of(self._started(), procs, options, timeout)

    def flame_graph(
        self,
        proc: str | Sequence[str],
        *,
        seconds: float = 5.0,
        rate: int = 100,
        native: bool = False,
        idle: bool = False,
        path: str | os.PathLike[str] | None = None,
    ) -> FlameGraph:
        """Records for some seconds what processes run, with py-spy on their hosts.

        Args:
            proc: Which, as `0.3`; several are recorded beside each other.
            seconds: For how long, 300 at most.
            rate: How often in a second their stacks are looked at.
            native: Also what runs in C and the like. The processes stop for each look.
            idle: Also threads that wait.
            path: Where to write the picture: a file, or where it is several a folder.

        Returns:
            How often each stack was seen, and a picture of it.

        Raises:
            PySpyError: None of them could be recorded.
            TelemetryError: It is not started.
            ValueError: `seconds` or `rate` is not one that it takes.

        Example:
            >>> graph = telemetry.flame_graph("0.3", seconds=10, path="trainer.svg")
            >>> graph.table.sort_by([("samples", "descending")])
        """
        from mesh_telemetry._stacks.flame_graph import FlameOptions
        from mesh_telemetry._stacks.requests import flame_graph_of

        procs = [proc] if isinstance(proc, str) else list(proc)
        options = FlameOptions(seconds, rate, native, idle)
        return flame_graph_of(self._started(), procs, options, path)

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
        from mesh_telemetry._disk.saving import save

        def ask(sql: str, as_of_us: int | None) -> Answer:
            as_of = None if as_of_us is None else as_of_us / 1e6
            return self.query(sql, as_of=as_of, timeout=timeout, require_full=require_full)

        return save(ask, Path(folder))

    def store_pyspy_dump(self, dump_id: str, proc: str, said: str, timeout: float = 30.0) -> None:
        """Keeps a dump of stacks that somebody else has made with py-spy, for queries.

        Args:
            dump_id: What to call it; dumps of several processes may share it.
            proc: The process, as `0.3`: the dump is kept on its host. Of other processes whatever
                they are called: the host of the program keeps it.
            said: JSON: what `py-spy dump --json` prints, or an object that has it as
                `stack_traces`.
            timeout: Seconds that it may take.

        Raises:
            TelemetryError: It is no dump, the host does not answer, or telemetry is not started.
            StorageError: There is no room for it.

        Example:
            >>> said = subprocess.check_output(["py-spy", "dump", "--json", "--pid", "4711"])
            >>> telemetry.store_pyspy_dump("before the crash", "serving", said.decode())
        """
        from mesh_telemetry._stacks.requests import store_dump_of

        store_dump_of(self._started(), dump_id, proc, said, timeout)

    def serve(
        self,
        port: int = 0,
        flight_port: int = 0,
        token: str | None = None,
        act_token: str | None = None,
    ) -> Serving:
        """Answers other programs of this machine too, until that or telemetry is closed.

        `mesh query` finds it by itself; others need its addresses and a token.

        Args:
            port: Where to listen on the loopback for HTTP; 0 for any free port.
            flight_port: Where to listen for Arrow Flight SQL; 0 for any free port.
            token: Permits reading; a random one when left out.
            act_token: Permits everything: also to stop meshes, to run code and to see local
                variables. A random one when left out.

        Raises:
            TelemetryError: It is not started, a port is taken, or the tokens are equal or empty.

        Example:
            >>> with telemetry.serve() as serving:
            ...     print(serving.url, serving.flight_url, serving.token)
        """
        from mesh_telemetry._dash.dashboard import BoundedLook, Dashboard
        from mesh_telemetry._rows.added_tables import table_docs
        from mesh_telemetry._serve.scopes import Tokens
        from mesh_telemetry._serve.served_queries import ServedQueries
        from mesh_telemetry._serve.serving import Serving

        self._started()
        dashboard = Dashboard(BoundedLook(self.query), table_docs(self._own_tables))
        queries = ServedQueries(self._asker())
        serving = Serving(
            queries,
            self.tables(),
            self._routes(),
            dashboard,
            port,
            flight_port,
            Tokens.random(token, act_token),
        )
        self._servings.append(serving)
        return serving

    def export_perfetto_trace(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
    ) -> TraceFile:
        """Writes what actors did, and which message led to what, for ui.perfetto.dev.

        Args:
            path: Where; one that ends in `.gz` is compressed. A new name in the working directory
                if left out.
            since: From when on: seconds since the epoch, or a time with a zone. As far as rows go
                if left out.
            until: Until before when; now if left out.

        Raises:
            CoverageError: No host has answered.
            TelemetryError: It is not started.
            ValueError: A time is without a zone.
            OSError: The file cannot be written.

        Example:
            >>> telemetry.export_perfetto_trace("step.pftrace.gz", since=time.time() - 30)
        """
        from mesh_telemetry._profile.file import trace_path, write_trace

        until_us = microseconds(time.time() if until is None else until)
        assert until_us is not None, "it is a time"
        self._started()
        return write_trace(
            trace_path(path), self._asked_at_length, self.tables(), microseconds(since), until_us
        )

    @contextmanager
    def profile(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        on_trace_ready: Callable[[TraceFile], object] | None = None,
    ) -> Iterator[None]:
        """Writes a trace of what happens within the block, at its end, also when it fails.

        Args:
            path: Where, as for `export_perfetto_trace`.
            on_trace_ready: Called with the trace when it is written.

        Raises:
            CoverageError: No host has answered.
            TelemetryError: It is not started.
            OSError: The file cannot be written.

        Example:
            >>> with telemetry.profile("step.pftrace"):
            ...     trainers.step.call(1).get()
        """
        self._started()
        since = time.time()
        try:
            yield
        finally:
            trace = self.export_perfetto_trace(path, since=since)
            if on_trace_ready is not None:
                on_trace_ready(trace)

    def _asked_at_length(self, sql: str, until_us: int | None) -> Answer:
        """Asks what may take its time, of rows until a moment, which the question says itself."""
        # What is asked has the exact bound; this lets hosts leave out what is much later.
        until = None if until_us is None else until_us / 1e6 + 1.0
        return self.query(sql, as_of=until, timeout=_LONG_S)

    def _routes(self) -> list[Route]:
        """Gives what `serve` answers besides questions in SQL."""
        from mesh_telemetry._debug.routes import debug_routes
        from mesh_telemetry._profile.routes import profile_routes
        from mesh_telemetry._serve.actions import action_routes
        from mesh_telemetry._stacks.pyspy_routes import pyspy_routes

        return [
            *action_routes(self._started()),
            *debug_routes(self._debugging, self.debug_on_failure),
            *profile_routes(self._asked_at_length, self.tables()),
            *pyspy_routes(self.pyspy_dump, self._recorded),
        ]

    def _recorded(self, proc: str, options: FlameOptions, cancellation: Cancellation) -> FlameGraph:
        """Does what `flame_graph` does, until somebody wants it no more."""
        from mesh_telemetry._stacks.requests import flame_graph_of

        return flame_graph_of(self._started(), [proc], options, None, cancellation)

    def debug_sessions(self) -> list[dict[str, Any]]:
        """Gives what stands at a breakpoint or a failure now, as in the table `debug_sessions`.

        Raises:
            TelemetryError: It is not started.
        """
        rows = self.query("select * from debug_sessions order by since_us, id").table.to_pylist()
        return list(rows)

    def debug(self, session: str) -> DebugConsole:
        """Attaches to a session.

        Args:
            session: Its id.

        Raises:
            DebugError: It is not there, or somebody else is attached.
            TelemetryError: It is not started.

        Example:
            >>> for session in telemetry.debug_sessions():
            ...     with telemetry.debug(session["id"]) as console:
            ...         print(session["rank"], console.run("p loss"))
        """
        from mesh_telemetry._debug.debugging import DebugConsole

        greeting = {"how": "attach", "client": f"process {os.getpid()}"}
        return DebugConsole(self._debugging().open(session, greeting))

    def debug_on_failure(
        self, mesh: str | None = None, *, limit: float = 600.0, is_on: bool = True
    ) -> None:
        """Has an exception that leaves an endpoint stand where it was raised, before it is told.

        Args:
            mesh: The name of actors, or of processes; all when left out.
            limit: Seconds after which a failure goes on at which nobody looks.
            is_on: False to have it no more.

        Raises:
            TelemetryError: It is not started.
            ValueError: `limit` is not above 0.
        """
        if not limit > 0:
            raise ValueError(f"limit {limit} is not above 0")
        limit_s = limit if is_on else None
        self._started().set_failure_rule.call_one(mesh, limit_s).get()

    def _debugging(self) -> Debugging:
        from mesh_telemetry._debug.debugging import Debugging

        return Debugging(self._started())

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
        self._client = None
        if keeper is None or os.getpid() != self._pid:
            return
        with suppress(MeshError, TimeoutError):
            keeper.close.call_one().get(_CLOSE_S)
        with suppress(MeshError, TimeoutError):
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
