"""Telemetry of a program: records it from start to close, and runs SQL queries over the rows."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from mesh_core import MeshError, this_proc
from mesh_telemetry._debug.debugging import DebugConsole, Debugging
from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._hosts.coordinator import COORDINATOR_NAME, Coordinator
from mesh_telemetry._hosts.recorded_processes import watch_until_recorded
from mesh_telemetry._job_extension import RecordedJob
from mesh_telemetry._options import TelemetryConfig, with_otlp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path
    from types import TracebackType
    from typing import Any, Self

    import pyarrow as pa

    from mesh_core import Future, HostMesh, ProcMesh
    from mesh_telemetry._hangs.hang import Hang
    from mesh_telemetry._hangs.slow_ranks import SlowRank
    from mesh_telemetry._heap.snapshot import HeapSnapshot
    from mesh_telemetry._profile.file import TraceFile
    from mesh_telemetry._query.coverage import Coverage, QueryResult
    from mesh_telemetry._query.stream import Stream
    from mesh_telemetry._serve.serving import Serving
    from mesh_telemetry._sources import SourceTable
    from mesh_telemetry._stacks.dump import StackDump
    from mesh_telemetry._stacks.flame_graph import FlameGraph
    from mesh_telemetry._telemetry_client import TelemetryClient

__all__ = ["Telemetry"]

_CLOSE_S = 60.0


class Telemetry:
    """Records a program and all processes that it spawns, and runs SQL queries over the rows.

    Nothing is recorded before `start`, and nothing is sent over the network until a query arrives.
    Instances are context managers.

    Args:
        config: The options; defaults to `TelemetryConfig()`.
        tables: Tables that the program adds, by name. Any process can record their rows with
            `mesh_core.spi.record_row`.

    Raises:
        ValueError: A table has a name that is already taken, or an invalid column.

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
        self._coordinator: Coordinator | None = None
        self._pid = 0
        self._servings: list[Serving] = []
        self._client: TelemetryClient | None = None
        if self._own_tables:
            self.tables()

    def start(self) -> Self:
        """Record the calling process and every process that is spawned from it afterwards.

        Raises:
            StorageError: The directory for events cannot be used.
            TelemetryError: An export is configured, and a package that it requires is not
                installed.
            ValueError: The export is configured by environment variables, and one cannot be parsed.
            RuntimeError: Telemetry is already started.
        """
        if self._coordinator is not None:
            raise RuntimeError("telemetry is already started: use it, or call close() first")
        run = f"{os.getpid()}-{os.urandom(16).hex()}"
        config = with_otlp(self.config, os.environ)
        coordinator = this_proc().spawn(COORDINATOR_NAME, Coordinator, run, config)
        try:
            coordinator.begin.call_one(coordinator).get()
        except BaseException:
            with suppress(MeshError):
                _stop(coordinator).get(_CLOSE_S)
            raise
        self._coordinator, self._pid = coordinator, os.getpid()
        return self

    def watch(self, procs: ProcMesh, *, timeout: float = 30.0) -> None:
        """Record existing processes and the processes that they spawn.

        Everything that happens there after this call returns is recorded. Watching a mesh twice has
        no further effect.

        Args:
            procs: The processes.
            timeout: Seconds in which all of them must start recording.

        Raises:
            TelemetryError: Telemetry is not started, or some processes are not recorded; the
                message has the cause. All others are recorded, and another call retries.
            ValueError: `timeout` is not positive.

        Example:
            >>> telemetry.watch(procs)
            >>> trainers.step.call(1).get()
            >>> telemetry.query("select * from messages where endpoint = 'step'").table
        """
        if not timeout > 0:
            raise ValueError(f"timeout {timeout} is not positive")
        watch_until_recorded(self._started(), procs, timeout)

    def tables(self) -> Mapping[str, pa.Schema]:
        """Return the schemas of all tables, by name."""
        return self._loaded_client().tables()

    def query(
        self,
        sql: str,
        params: Sequence[object] | Mapping[str, object] | None = None,
        *,
        as_of: float | datetime | None = None,
        timeout: float = 10.0,
        require_full: bool = False,
    ) -> QueryResult:
        """Query all hosts with SQL.

        Args:
            sql: One `select` over the tables that `tables` lists.
            params: The values of `$1`, `$2` and so on as a sequence, or of `$name` as a mapping.
            as_of: Return the rows as they were at this time: seconds since the epoch, or a
                `datetime` with a time zone.
            timeout: Seconds after which hosts that have not replied are left out.
            require_full: Raise `CoverageError` unless all hosts have replied.

        Returns:
            The rows as `table`, and the hosts that replied as `coverage`.

        Raises:
            QueryError: The query is invalid.
            CoverageError: No host replied, or a host did not reply and `require_full` is set.
            TelemetryError: Telemetry is not started.
            ValueError: `as_of` has no time zone, or `timeout` is not positive.
        """
        return self._loaded_client().query(
            sql, params, as_of=as_of, timeout=timeout, require_full=require_full
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
        """Query all hosts, and return batches as hosts reply.

        Takes the same arguments as `query`. If the query only filters one table, selects columns,
        or limits the rows without an order, batches are passed on as they arrive and not stored.
        Otherwise the result is computed first.

        Returns:
            The batches, and as `coverage`, after the last batch, the hosts that replied.

        Raises:
            QueryError: The query is invalid.
            TelemetryError: Telemetry is not started.
            ValueError: `as_of` has no time zone, or `timeout` is not positive.

        Example:
            >>> with telemetry.stream("select * from logs") as stream:
            ...     for batch in stream:
            ...         print(batch.num_rows)
        """
        return self._loaded_client().stream(sql, params, as_of, timeout, require_full)

    def why(self) -> list[Hang]:
        """Return which ranks keep others waiting now, where they are, and why.

        For a collective of `torch.distributed`, these are the ranks that have not joined it. If
        all collectives proceed, they are the actors at the ends of chains of calls that wait.
        Telemetry also reports hanging collectives automatically, in the log and in the table
        `hangs`; this method does not wait until a hang is certain.

        Returns:
            The hangs; printing one describes it. Empty if no rank and no actor waits.

        Raises:
            TelemetryError: Telemetry is not started.

        Example:
            >>> for hang in telemetry.why():
            ...     print(hang)
        """
        return self._loaded_client().why()

    def slow_ranks(self) -> list[SlowRank]:
        """Return the ranks that make all others wait, although they join every collective.

        Ranks are compared by the time that they need between collectives, over the latest
        operations of each process group; there must be about a hundred. The clocks of hosts need
        not agree.

        Returns:
            The ranks that need at least 3 percent more time than the others.

        Raises:
            TelemetryError: Telemetry is not started.

        Example:
            >>> for slow in telemetry.slow_ranks():
            ...     print(slow)
        """
        return self._loaded_client().slow_ranks()

    def pyspy_dump(
        self,
        where: str | Sequence[str] | None = None,
        *,
        native: bool = False,
        locals: bool = False,
        subprocesses: bool = False,
        timeout: float = 10.0,
    ) -> StackDump:
        """Take the stacks of all recorded processes with py-spy, and store them for queries.

        py-spy reads the memory of a process from outside, so it also works if the process never
        releases the GIL. The rows are in `pyspy_dumps`, `pyspy_stack_traces`, `pyspy_frames` and
        `pyspy_local_variables`.

        Args:
            where: The processes: an SQL condition over the table `procs`, or names such as `0.3`.
                All processes if None.
            native: Include native frames. This pauses each process for some milliseconds.
            locals: Include local variables.
            subprocesses: Include child processes.
            timeout: Seconds after which processes that py-spy has not read are left out.

        Returns:
            The id of the dump, and the processes that it contains.

        Raises:
            PySpyError: No stacks could be taken.
            QueryError: `where` is not a valid condition.
            TelemetryError: Telemetry is not started.

        Example:
            >>> dump = telemetry.pyspy_dump("mesh = 'trainers'")
            >>> telemetry.query(
            ...     "select proc, name, line from pyspy_frames where dump_id = $1 "
            ...     "and frame_depth = 0", [dump.dump_id]
            ... ).table
        """
        return self._loaded_client().pyspy_dump(
            where, native=native, locals=locals, subprocesses=subprocesses, timeout=timeout
        )

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
        """Sample the stacks of processes for some seconds, with py-spy on their hosts.

        Args:
            proc: The name of a process, such as `0.3`, or several names; they are sampled
                concurrently.
            seconds: The duration; at most 300.
            rate: Samples per second.
            native: Include native frames. This pauses the process for each sample.
            idle: Include waiting threads.
            path: Where to write the image: a file, or a directory if there are several processes.

        Returns:
            The number of samples of each stack, and the flame graph.

        Raises:
            PySpyError: None of the processes could be sampled.
            TelemetryError: Telemetry is not started.
            ValueError: `seconds` or `rate` is out of range.

        Example:
            >>> graph = telemetry.flame_graph("0.3", seconds=10, path="trainer.svg")
            >>> graph.table.sort_by([("samples", "descending")])
        """
        return self._loaded_client().flame_graph(
            proc, seconds=seconds, rate=rate, native=native, idle=idle, path=path
        )

    def heap_snapshot(
        self,
        proc: str | Sequence[str],
        *,
        seconds: float = 5.0,
        peak: bool = False,
        native: bool = False,
        objects: bool = False,
        path: str | os.PathLike[str] | None = None,
    ) -> HeapSnapshot:
        """Track the allocations of processes for some seconds, with memray in these processes.

        The snapshot contains the memory that was allocated in this time and is still in use at its
        end. The rows are also in the table `heap`. Processes become slower while they are tracked.
        memray has to be installed on the hosts: `pip install 'torchmesh-telemetry[memray]'`.

        Args:
            proc: The name of a process, such as `0.3`, or several names; they are tracked
                concurrently.
            seconds: The duration; at most 300.
            peak: Show the memory that was in use at its maximum, instead of at the end.
            native: Include native frames in the flame graph; rows are for Python functions.
            objects: Track each object that Python's own allocator serves. Without this, small
                objects appear as the blocks of 256 KiB or 1 MiB from which they are served.
            path: Where to write the flame graph: an HTML file, or a directory if there are several
                processes.

        Returns:
            The memory by the call that has allocated it, and the flame graph.

        Raises:
            HeapError: No snapshot of any process could be taken: memray is not installed on their
                hosts, they have exited, or they do not reply.
            TelemetryError: Telemetry is not started.
            ValueError: `seconds` is out of range.

        Example:
            >>> snapshot = telemetry.heap_snapshot("0.3", seconds=10, path="heap.html")
            >>> snapshot.table.select(["function", "file", "line", "bytes"]).slice(0, 5)
        """
        return self._loaded_client().heap_snapshot(
            proc, seconds=seconds, peak=peak, native=native, objects=objects, path=path
        )

    def save(
        self, folder: str | Path, *, timeout: float = 60.0, require_full: bool = False
    ) -> Coverage:
        """Write all current rows of all hosts to a directory on this machine, for `Archive`.

        Live tables have their values from the time of the export. Rows are fetched in parts, so
        memory is bounded.

        Args:
            folder: The directory; it may contain earlier exports.
            timeout: Seconds that one part may take.
            require_full: Raise `CoverageError` unless all hosts have replied.

        Returns:
            The hosts that replied.

        Raises:
            CoverageError: No host replied, or a host did not reply and `require_full` is set.
            StorageError: The directory cannot be written to.
            TelemetryError: Telemetry is not started.

        Example:
            >>> telemetry.save("/shared/before-the-change")
            >>> with Archive("/shared/before-the-change") as archive:
            ...     archive.query("select name, count(*) from spans group by name").table
        """
        return self._loaded_client().save(folder, timeout, require_full)

    def store_pyspy_dump(
        self, dump_id: str, proc: str, dump_json: str, timeout: float = 30.0
    ) -> None:
        """Store a dump of stacks that another program has made with py-spy, for queries.

        Args:
            dump_id: The id of the dump; dumps of several processes may share it.
            proc: The process, such as `0.3`; the dump is stored on its host. Processes that are not
                recorded may have any other name; their dumps are stored on the host of the program.
            dump_json: JSON: the output of `py-spy dump --json`, or an object that contains it as
                `stack_traces`.
            timeout: Seconds that the request may take.

        Raises:
            TelemetryError: The text is not a dump, the host does not respond, or telemetry is not
                started.
            StorageError: The space is insufficient.

        Example:
            >>> dump_json = subprocess.check_output(["py-spy", "dump", "--json", "--pid", "4711"])
            >>> telemetry.store_pyspy_dump("before the crash", "serving", dump_json.decode())
        """
        self._loaded_client().store_pyspy_dump(dump_id, proc, dump_json, timeout)

    def serve(
        self,
        port: int = 0,
        flight_port: int = 0,
        token: str | None = None,
        act_token: str | None = None,
    ) -> Serving:
        """Serve queries of other programs on this machine until the result or telemetry is closed.

        `mesh query` finds the program automatically. Other clients need the addresses and a token.

        Args:
            port: Port on the loopback interface for HTTP; 0 for any free port.
            flight_port: Port on the loopback interface for Arrow Flight SQL; 0 for any free port.
            token: The read token; random if omitted.
            act_token: The act token, which permits everything: it also allows clients to stop
                meshes, run code and read local variables. Random if omitted.

        Returns:
            The addresses and tokens; closing it stops the servers.

        Raises:
            TelemetryError: Telemetry is not started, a port is taken, or the tokens are equal or
                empty.

        Example:
            >>> with telemetry.serve() as serving:
            ...     print(serving.url, serving.flight_url, serving.token)
        """
        serving = self._loaded_client().serve(port, flight_port, token, act_token)
        self._servings.append(serving)
        return serving

    def export_perfetto_trace(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
    ) -> TraceFile:
        """Write a trace of actors and their messages for ui.perfetto.dev.

        Args:
            path: The file; if its name ends in `.gz`, it is compressed. A new name in the working
                directory if omitted.
            since: The start: seconds since the epoch, or a `datetime` with a time zone. The oldest
                row if omitted.
            until: The end, exclusive; now if omitted.

        Returns:
            The path and a summary of the trace.

        Raises:
            CoverageError: No host replied.
            TelemetryError: Telemetry is not started.
            ValueError: A time has no time zone.
            OSError: The file cannot be written.

        Example:
            >>> telemetry.export_perfetto_trace("step.pftrace.gz", since=time.time() - 30)
        """
        return self._loaded_client().export_perfetto_trace(path, since, until)

    @contextmanager
    def profile(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        on_trace_ready: Callable[[TraceFile], object] | None = None,
    ) -> Iterator[None]:
        """Write a trace of the block when it ends, even if it fails.

        Args:
            path: The file, as for `export_perfetto_trace`.
            on_trace_ready: Called with the trace after it is written.

        Raises:
            CoverageError: No host replied.
            TelemetryError: Telemetry is not started.
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

    def debug_sessions(self) -> list[dict[str, Any]]:
        """Return the paused debug sessions, with the columns of the table `debug_sessions`.

        Raises:
            TelemetryError: Telemetry is not started.
        """
        rows = self.query("select * from debug_sessions order by since_us, id").table.to_pylist()
        return list(rows)

    def debug(self, session: str) -> DebugConsole:
        """Attach to a debug session.

        Args:
            session: The id of the session.

        Returns:
            A console that runs pdb commands in the session.

        Raises:
            DebugError: The session does not exist, or another client is attached.
            TelemetryError: Telemetry is not started.

        Example:
            >>> for session in telemetry.debug_sessions():
            ...     with telemetry.debug(session["id"]) as console:
            ...         print(session["rank"], console.run("p loss"))
        """
        greeting = {"how": "attach", "client": f"process {os.getpid()}"}
        return DebugConsole(Debugging(self._started()).open(session, greeting))

    def debug_on_failure(
        self, mesh: str | None = None, *, limit: float = 600.0, is_on: bool = True
    ) -> None:
        """Pause an actor where an exception was raised that leaves its endpoint.

        The actor pauses before the caller sees the exception.

        Args:
            mesh: The name of an actor mesh or process mesh; all meshes if omitted.
            limit: Seconds after which the actor continues if no client attaches.
            is_on: False to turn this off.

        Raises:
            TelemetryError: Telemetry is not started.
            ValueError: `limit` is not positive.
        """
        if not limit > 0:
            raise ValueError(f"limit {limit} is not positive")
        limit_s = limit if is_on else None
        self._started().set_failure_rule.call_one(mesh, limit_s).get()

    def open(self, meshes: Mapping[str, HostMesh]) -> RecordedJob:
        """Start telemetry unless it is already started.

        `Job.state` of mesh-jobs calls this for `job.add_extensions(telemetry)`.

        Args:
            meshes: All meshes of the job.

        Raises:
            StorageError: The directory for events cannot be used.
        """
        if self._coordinator is None:
            self.start()
        return RecordedJob(self.close)

    def close(self) -> None:
        """Stop recording and discard all rows; later calls do nothing."""
        servings, self._servings = self._servings, []
        for serving in servings:
            serving.close()
        coordinator, self._coordinator = self._coordinator, None
        self._client = None
        if coordinator is None or os.getpid() != self._pid:
            return
        with suppress(MeshError, TimeoutError):
            coordinator.close.call_one().get(_CLOSE_S)
        with suppress(MeshError, TimeoutError):
            _stop(coordinator).get(_CLOSE_S)

    def __enter__(self) -> Self:
        return self if self._coordinator is not None else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _loaded_client(self) -> TelemetryClient:
        """Return the implementation of everything that needs Arrow, loaded on first use."""
        if self._client is None:
            # Arrow and the servers take 0.2 s and 54 MB. A program that only records does not need
            # them, nor do the processes that it spawns, which load this module too.
            from mesh_telemetry._telemetry_client import TelemetryClient  # noqa: PLC0415

            self._client = TelemetryClient(self._own_tables, self._started, self.debug_on_failure)
        return self._client

    def _started(self) -> Coordinator:
        if self._coordinator is None:
            raise TelemetryError("telemetry is not started: call start() first")
        if os.getpid() != self._pid:
            raise TelemetryError(
                "this process is a fork of the process with telemetry: use telemetry there"
            )
        return self._coordinator


def _stop(coordinator: Coordinator) -> Future[None]:
    stopped: Future[None] = coordinator.stop()
    return stopped
