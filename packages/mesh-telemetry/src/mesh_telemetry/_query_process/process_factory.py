"""The side of the telemetry process in the protocol with the template process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._query_process.frames import FORK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["QueryProcess", "QueryProcessFactory"]

_MODULE = "mesh_telemetry._query_process.template"
_MESSAGE_LEN_MAX = 64
_STDERR_LEN_MAX = 4096
_EXIT_S = 5.0
_TEMPLATE_EXIT_S = 1.0
_BUFFER_LEN = 1 << 20
# Libraries must not start threads while they are loaded, because a forked process would lack them.
# Each arena of the allocator takes address space, which is limited.
_ENVIRONMENT = {
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "MALLOC_ARENA_MAX": "2",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "RUST_BACKTRACE": "0",
}


class QueryProcess:
    """A query process from the point of view of the telemetry process.

    Attributes:
        pid: Its process id.
        exit_code: Its exit code as in `subprocess.Popen.returncode`, once it has exited.
    """

    def __init__(self, pid: int, stderr: int, exit_code: asyncio.Future[int]) -> None:
        self.pid = pid
        self.exit_code = exit_code
        self._stderr = stderr
        self._pidfd: int | None = None
        with suppress(OSError):
            self._pidfd = os.pidfd_open(pid)
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def connect(self, connection: socket.socket) -> None:
        """Take over this end of the connection to the process."""
        self.reader, self.writer = await asyncio.open_connection(sock=connection, limit=_BUFFER_LEN)

    def kill(self) -> None:
        """Kill the process; later calls do nothing."""
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
            self.writer.transport.abort()
            os.close(self._stderr)

    async def exit_report(self) -> tuple[int | None, str]:
        """Return the exit code and the end of the stderr of a process that closed its connection.

        The exit code is None if the process does not exit within seconds.
        """
        code = None
        with suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_S):
                code = await asyncio.shield(self.exit_code)
        return code, _tail(self._stderr)


class QueryProcessFactory:
    """Forks query processes from a template process, which is started on first use.

    All methods except `start` are called in one event loop.

    Args:
        host: The arguments about the host for each query process.
        on_exit: Called with the pid of each process that has exited.
    """

    def __init__(self, host: Mapping[str, Any], on_exit: Callable[[int], object]) -> None:
        self._arguments = json.dumps(host)
        self._on_exit = on_exit
        self._template: _Template | None = None
        self._is_closed = False

    def start(self) -> None:
        """Start the template process, which takes a second to load the engine."""
        if self._template is None:
            self._template = _Template(self._arguments, self._on_exit)

    async def start_process(self) -> QueryProcess:
        """Fork a query process, once the template is ready.

        Raises:
            TelemetryError: The template process does not start, or has exited.
        """
        template = self._template
        if template is not None and not template.is_over:
            try:
                return await template.start_process()
            except TelemetryError:
                # If the template exited unnoticed, it is replaced; any other error is raised.
                if not template.is_over:
                    raise
        if self._is_closed:
            raise TelemetryError("telemetry is closed: run queries before closing it")
        if self._template is None or self._template.is_over:
            self._template = _Template(self._arguments, self._on_exit)
        return await self._template.start_process()

    async def close(self) -> None:
        """Stop the template, which kills all of its query processes, and wait for it."""
        self._is_closed = True
        template, self._template = self._template, None
        if template is not None:
            await template.close()


class _Template:
    def __init__(self, arguments: str, on_exit: Callable[[int], object]) -> None:
        self._on_exit = on_exit
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        self._control.setblocking(False)
        self._stderr = os.memfd_create("mesh-telemetry-template")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._forking: deque[tuple[asyncio.Future[QueryProcess], int]] = deque()
        self._exits: dict[int, asyncio.Future[int]] = {}
        self.is_over = False
        with theirs:
            descriptor = theirs.fileno()
            # `-P` keeps the working directory out of the module path; PYTHONPATH has the module
            # path of this process instead.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, arguments, str(descriptor)],
                pass_fds=(descriptor,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                cwd="/",
                env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    async def start_process(self) -> QueryProcess:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            loop.add_reader(self._control.fileno(), self._receive)
        forked: asyncio.Future[QueryProcess] = loop.create_future()
        ours, theirs = socket.socketpair()
        stderr = os.memfd_create("mesh-telemetry-query")
        try:
            with theirs:
                socket.send_fds(self._control, [FORK], [theirs.fileno(), stderr])
        except OSError as error:
            ours.close()
            os.close(stderr)
            raise TelemetryError(f"cannot start a query process ({error}): try again") from error
        self._forking.append((forked, stderr))
        try:
            process = await forked
            await process.connect(ours)
        except BaseException:
            # If the process is forked nevertheless, it reads the end of its connection and exits.
            ours.close()
            raise
        return process

    async def close(self) -> None:
        self._close("telemetry is closed")
        await asyncio.to_thread(self._reap)

    def _receive(self) -> None:
        try:
            message = self._control.recv(_MESSAGE_LEN_MAX).decode()
        except BlockingIOError:
            return
        except OSError:
            message = ""
        if not message:
            self._close(f"the template of query processes has exited: {_tail(self._stderr)}")
            self._reap()
            return
        assert self._loop is not None, "it is read in the loop"
        what, pid, code = message.split()
        if what == "forked":
            forked, stderr = self._forking.popleft()
            exit_code = self._exits[int(pid)] = self._loop.create_future()
            process = QueryProcess(int(pid), stderr, exit_code)
            if forked.done():
                os.close(stderr)
            else:
                forked.set_result(process)
        else:
            exited = self._exits.pop(int(pid))
            if not exited.done():
                exited.set_result(int(code))
            self._on_exit(int(pid))

    def _reap(self) -> None:
        """Wait for the template to exit after its connection was closed; kill it if it does not."""
        try:
            self._process.wait(_TEMPLATE_EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _close(self, cause: str) -> None:
        if self.is_over:
            return
        self.is_over = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._fail_pending, self._control.fileno(), cause)
        self._control.shutdown(socket.SHUT_RDWR)

    def _fail_pending(self, control: int, cause: str) -> None:
        assert self._loop is not None, "nothing waits without a loop"
        self._loop.remove_reader(control)
        self._control.close()
        while self._forking:
            forked, stderr = self._forking.popleft()
            os.close(stderr)
            if not forked.done():
                forked.set_exception(TelemetryError(cause))
        for pid, exited in self._exits.items():
            if not exited.done():
                exited.set_result(-signal.SIGKILL)
            self._on_exit(pid)
        self._exits.clear()


def _tail(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, _STDERR_LEN_MAX, max(size - _STDERR_LEN_MAX, 0))
    return tail.decode(errors="replace").strip()
