"""The query processes of a host; each runs one query at a time and can be killed with it."""

from __future__ import annotations

import asyncio
import pickle
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from mesh_telemetry._errors import QueryError, TelemetryError
from mesh_telemetry._query.fragment import QUERY_FAULT
from mesh_telemetry._query_process.frame_connection import DEADLINE
from mesh_telemetry._query_process.frames import (
    FAILURE,
    FRAGMENT,
    HEAD,
    HOSTS_CANCEL,
    HOSTS_END,
    HOSTS_REPLY,
    HOSTS_REQUEST,
    QUERY,
    packed,
)
from mesh_telemetry._query_process.limits import out_of_memory
from mesh_telemetry._query_process.process_factory import QueryProcess, QueryProcessFactory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mesh_telemetry._query.fragment import FragmentReply, QueriedHost

__all__ = ["FRAGMENTS", "OUTSIDE", "OWN", "QueryPool", "RunOnHosts", "Task"]

#: Kinds of work, each with a separate limit: fragments of any query, queries of the program, and
#: queries of other programs. Queries may wait for fragments, so the two must not share a limit, and
#: other programs must not delay the program.
FRAGMENTS, OWN, OUTSIDE = "fragments", "own", "outside"
_CONCURRENT_MAX = 4
# After the deadline, a process has this long to stop on its own, so that its cached tables are
# kept.
_KILL_AFTER_S = 0.25
# All idle processes but one are killed after this time.
_IDLE_S = 10.0

#: Sends a fragment to all hosts with a time limit in seconds, and yields replies as they arrive.
#: The function and its result are used in a thread; the result has a `close`.
if TYPE_CHECKING:
    RunOnHosts = Callable[[bytes, float], Iterable[QueriedHost | FragmentReply]]


class Task(NamedTuple):
    """The work for a query process."""

    work: str
    """`FRAGMENTS`, `OWN` or `OUTSIDE`."""
    body: bytes
    timeout_s: float
    memory_max_bytes: int
    """The limit that the process sets for itself; used in the error if it is exceeded."""
    run_on_hosts: RunOnHosts | None = None


class QueryPool:
    """Runs queries in processes; the most recently used idle process is taken first.

    Args:
        host: The arguments about the host for each process.
        on_exit: Called with the pid of each process that has exited.
    """

    def __init__(self, host: Mapping[str, Any], on_exit: Callable[[int], object]) -> None:
        self._factory = QueryProcessFactory(host, on_exit)
        self._slots = {
            work: asyncio.Semaphore(_CONCURRENT_MAX) for work in (FRAGMENTS, OWN, OUTSIDE)
        }
        self._free: list[tuple[QueryProcess, float]] = []
        self._trimming: asyncio.TimerHandle | None = None
        self._is_closed = False

    def start(self) -> None:
        """Start loading the engine; may be called from any thread."""
        self._factory.start()

    async def run(self, task: Task) -> bytes:
        """Run a task in a dedicated process; kill the process if the caller is cancelled.

        Raises:
            QueryError: The query is at fault; this includes a query that crashed its process.
            TelemetryError: The task timed out, or no process can be started.
        """
        try:
            async with (
                asyncio.timeout(task.timeout_s + _KILL_AFTER_S),
                self._slots[task.work],
            ):
                return await self._run(task)
        except TimeoutError:
            raise TelemetryError(
                f"the query was not finished after {task.timeout_s:.3g} s: increase the timeout,"
                " or filter more"
            ) from None

    async def close(self) -> None:
        """Kill all processes, and wait for them."""
        self._is_closed = True
        if self._trimming is not None:
            self._trimming.cancel()
        free, self._free = self._free, []
        for process, _ in free:
            process.kill()
        await self._factory.close()

    async def _run(self, task: Task) -> bytes:
        process = await self._acquire()
        hosts = _HostFragments(process, task.run_on_hosts)
        is_sound = False
        try:
            result = await _exchange(process, task, hosts)
            is_sound = True
        except (OSError, asyncio.IncompleteReadError):
            raise _exit_error(task, *await process.exit_report()) from None
        except (QueryError, TelemetryError):
            is_sound = True
            raise
        finally:
            hosts.close()
            if is_sound and not self._is_closed:
                self._release(process)
            else:
                process.kill()
        return result

    async def _acquire(self) -> QueryProcess:
        while self._free:
            process, _ = self._free.pop()
            if not process.exit_code.done() and not process.reader.at_eof():
                return process
            process.kill()
        return await self._factory.start_process()

    def _release(self, process: QueryProcess) -> None:
        self._free.append((process, time.monotonic()))
        if len(self._free) > 1 and self._trimming is None:
            self._trimming = asyncio.get_running_loop().call_later(_IDLE_S, self._trim)

    def _trim(self) -> None:
        """Kill processes that were idle for long, except the most recently used one."""
        self._trimming = None
        oldest = time.monotonic() - _IDLE_S
        while len(self._free) > 1 and self._free[0][1] <= oldest:
            process, _ = self._free.pop(0)
            process.kill()
        if len(self._free) > 1:
            left_s = self._free[0][1] - oldest
            self._trimming = asyncio.get_running_loop().call_later(left_s, self._trim)


async def _exchange(process: QueryProcess, task: Task, hosts: _HostFragments) -> bytes:
    """Send a task, and serve the requests of its process until it returns a result."""
    kind = FRAGMENT if task.work == FRAGMENTS else QUERY
    process.writer.write(packed(kind, task.body))
    while True:
        kind, number, length = HEAD.unpack(await process.reader.readexactly(HEAD.size))
        body = await process.reader.readexactly(length)
        if kind == HOSTS_REQUEST:
            hosts.start(number, body)
        elif kind == HOSTS_CANCEL:
            hosts.cancel(number)
        elif kind == FAILURE:
            error: TelemetryError = pickle.loads(body)
            raise error
        else:
            return body


class _HostFragments:
    """The fragments that one process has sent to all hosts, each in a thread."""

    def __init__(self, process: QueryProcess, run_on_hosts: RunOnHosts | None) -> None:
        self._process = process
        self._run_on_hosts = run_on_hosts
        self._open: dict[int, _FragmentRelay] = {}

    def start(self, number: int, body: bytes) -> None:
        """Send a fragment to all hosts, and forward their replies to the process."""
        assert self._run_on_hosts is not None, "only questions about several hosts are taken apart"
        (deadline_s,) = DEADLINE.unpack_from(body)
        relay = self._open[number] = _FragmentRelay(self._process, number)
        relay.start(self._run_on_hosts, body[DEADLINE.size :], deadline_s)

    def cancel(self, number: int) -> None:
        """Drop outstanding replies to one request."""
        relay = self._open.pop(number, None)
        if relay is not None:
            relay.close()

    def close(self) -> None:
        """Drop all outstanding replies."""
        for number in list(self._open):
            self.cancel(number)


class _FragmentRelay:
    def __init__(self, process: QueryProcess, number: int) -> None:
        self._process = process
        self._number = number
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._replies: Any = None

    def start(self, run_on_hosts: RunOnHosts, fragment: bytes, deadline_s: float) -> None:
        # A new thread is not part of the call that this actor is serving, so it may call the actor
        # itself.
        threading.Thread(
            target=self._run,
            args=(run_on_hosts, fragment, deadline_s),
            name="mesh-telemetry-start",
            daemon=True,
        ).start()

    def close(self) -> None:
        self._is_closed = True
        if self._replies is not None:
            self._replies.close()

    def _run(self, run_on_hosts: RunOnHosts, fragment: bytes, deadline_s: float) -> None:
        try:
            self._replies = run_on_hosts(fragment, deadline_s)
            if self._is_closed:
                self._replies.close()
            for item in self._replies:
                self._send(HOSTS_REPLY, pickle.dumps(item))
        finally:
            self._send(HOSTS_END, b"")

    def _send(self, kind: int, body: bytes) -> None:
        # The loop is closed when the telemetry process ends.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._write, packed(kind, body, self._number))

    def _write(self, frame: bytes) -> None:
        if not self._is_closed:
            self._process.writer.write(frame)


def _exit_error(task: Task, code: int | None, stderr: str) -> TelemetryError:
    """Return the error for a process that exited without a result."""
    if code == -signal.SIGABRT and "memory allocation" in stderr:
        return out_of_memory(task.memory_max_bytes)
    if code == -signal.SIGXCPU:
        return TelemetryError(
            "the query exceeded its CPU time: increase the timeout, or filter more"
        )
    if code in (None, -signal.SIGKILL):
        return TelemetryError("the query process was killed: try again")
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return QueryError(
        f"{QUERY_FAULT}its process exited with {name}: simplify the query, it may be nested too"
        " deeply"
    )
