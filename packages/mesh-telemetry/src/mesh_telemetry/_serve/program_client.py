"""Client for a program that serves telemetry, for the same user on the same machine."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mesh_telemetry._errors import DebugError, QueryError, TelemetryError
from mesh_telemetry._serve.program_files import ServedProgram
from mesh_telemetry._serve.scopes import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

__all__ = ["ProgramClient", "ProgramUnavailable", "has_ended", "is_process_alive"]

_TIMEOUT_S = 10.0
# Time limit of one attempt to connect to the loopback interface.
_ATTEMPT_S = 0.5
_PIECE_LEN = 1 << 16
# The flag of a process that has begun to exit, PF_EXITING in the kernel.
_EXITING = 0x4
# Errors by HTTP status; all other statuses raise `TelemetryError`.
_REJECTIONS = {400: QueryError, 409: DebugError}


class ProgramUnavailable(TelemetryError):
    """Raised if the program has stopped serving or has exited."""


class ProgramClient:
    """Client of one program; thread-safe and a context manager.

    Args:
        served: The program.

    Attributes:
        served: The program.

    Example:
        >>> with ProgramClient(served_program(None)) as client:  # doctest: +SKIP
        ...     client.query("select count(*) as n from procs")["rows"]
        [{'n': 3}]
    """

    def __init__(self, served: ServedProgram) -> None:
        self.served: ServedProgram = served
        self._address = urlsplit(served.url).netloc
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._is_over = False

    def query(
        self,
        sql: str,
        params: Sequence[object] | Mapping[str, object] | None = None,
        *,
        timeout_s: float = _TIMEOUT_S,
        scope: Scope = Scope.READ,
    ) -> dict[str, Any]:
        """Run an SQL query; return an object with `columns`, `rows` and `coverage`.

        Args:
            sql: The query.
            params: The values of its parameters.
            timeout_s: The maximum time without data from the program, in seconds.
            scope: The token to send. Tables with local variables require `ACT`.

        Raises:
            QueryError: The query is invalid.
            ProgramUnavailable: The program has exited or has stopped serving.
            TelemetryError: It did not reply in time.
        """
        body = {"sql": sql, "params": params}
        return self.post("/query", body, timeout_s=timeout_s, scope=scope)

    def post(
        self,
        path: str,
        value: object,
        *,
        timeout_s: float = _TIMEOUT_S,
        scope: Scope = Scope.READ,
    ) -> dict[str, Any]:
        """Send JSON to a path, and return the JSON of the response.

        Args:
            path: The path.
            value: The value to send.
            timeout_s: The maximum time without data from the program, in seconds.
            scope: The token to send.

        Raises:
            QueryError: The request is invalid.
            ProgramUnavailable: The program has exited or has stopped serving.
            TelemetryError: The request was rejected, or no reply came in time.
        """
        with self._handling("POST", path, value, timeout_s, scope=scope) as (_, reply):
            decoded: dict[str, Any] = json.loads(reply.read())
            return decoded

    def get(self, path: str, *, timeout_s: float = _TIMEOUT_S) -> dict[str, Any]:
        """Fetch a path, and return the JSON of the response; takes and raises as `pieces` does."""
        decoded: dict[str, Any] = json.loads(b"".join(self.pieces(path, timeout_s=timeout_s)))
        return decoded

    def pieces(self, path: str, *, timeout_s: float = _TIMEOUT_S) -> Iterator[bytes]:
        """Fetch a path, and yield the body as it arrives.

        Args:
            path: The path with its query string.
            timeout_s: The maximum time without data from the program, in seconds.

        Raises:
            QueryError: The request is invalid.
            ProgramUnavailable: The program has exited or has stopped serving.
            TelemetryError: The request was rejected, or the body is incomplete.
        """
        with self._handling("GET", path, None, timeout_s) as (_, reply):
            while piece := reply.read1(_PIECE_LEN):
                yield piece
            if reply.length:
                raise http.client.IncompleteRead(b"", reply.length)

    def upgraded(
        self, path: str, value: object, kind: str, *, timeout_s: float = _TIMEOUT_S
    ) -> socket.socket:
        """Send JSON and the act token to a path, and return the upgraded connection.

        No more HTTP is sent on the connection. The caller owns it, also after this client is
        closed.

        Args:
            path: The path.
            value: The value to send.
            kind: The protocol of the upgraded connection.
            timeout_s: The maximum time without data from the program before the upgrade, in
                seconds.

        Raises:
            DebugError: The target does not exist, or is in use.
            QueryError: The request is invalid.
            ProgramUnavailable: The program has exited or has stopped serving.
            TelemetryError: The request was rejected, or no reply came in time.
        """
        with self._handling("POST", path, value, timeout_s, kind, scope=Scope.ACT) as (
            connection,
            _,
        ):
            stream = connection.sock
            stream.settimeout(None)
            # The socket is detached so that it is not closed with the HTTP connection.
            connection.sock = None
        return stream

    def close(self) -> None:
        """Close the client; pending requests fail."""
        with self._lock:
            self._is_over = True
            waiting = list(self._open)
        for sock in waiting:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def _handling(
        self,
        method: str,
        path: str,
        value: object,
        timeout_s: float,
        kind: str | None = None,
        scope: Scope = Scope.READ,
    ) -> Iterator[tuple[http.client.HTTPConnection, http.client.HTTPResponse]]:
        """Send a request, and provide its response within the block."""
        token = self.served.act_token() if scope is Scope.ACT else self.served.token
        headers = {"Authorization": f"Bearer {token}"}
        if kind is not None:
            headers |= {"Connection": "Upgrade", "Upgrade": kind}
        body = None
        if method == "POST":
            body = json.dumps(value).encode()
            headers["Content-Type"] = "application/json"
        deadline = time.monotonic() + timeout_s
        while True:
            # The connection is made directly: a configured proxy cannot reach the loopback
            # interface.
            attempt_s = min(_ATTEMPT_S, timeout_s)
            connection = http.client.HTTPConnection(self._address, timeout=attempt_s)
            connection.response_class = http.client.HTTPResponse if kind is None else _Head
            sock = None
            try:
                if not self._connect(connection, deadline):
                    continue
                sock = connection.sock
                sock.settimeout(timeout_s)
                with self._lock:
                    if self._is_over:
                        raise ProgramUnavailable(
                            f"the connection to program {self.served.pid} is closed"
                        )
                    self._open.add(sock)
                send = partial(connection.request, method, path, body, headers)
                reply = self._reply_to(send, connection, scope, deadline)
                if reply is None:
                    continue
                with reply:
                    if reply.status != (200 if kind is None else 101):
                        refusal = _REJECTIONS.get(reply.status, TelemetryError)
                        raise refusal(_rejection(reply.read()))
                    yield connection, reply
                return
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise self._timeout_error(error) from error
            finally:
                with self._lock:
                    self._open.discard(sock)
                connection.close()

    def _connect(self, connection: http.client.HTTPConnection, deadline: float) -> bool:
        """Connect; return False if the attempt must be repeated.

        If the port is flooded, the kernel drops the first packets of a connection, and repeats its
        own after 1 s, 3 s and 7 s. Frequent attempts find a free slot in the backlog sooner.
        """
        try:
            connection.connect()
        except TimeoutError:
            if self._is_over or time.monotonic() >= deadline:
                raise
            return False
        return True

    def _reply_to(
        self,
        send: Callable[[], object],
        connection: http.client.HTTPConnection,
        scope: Scope,
        deadline: float,
    ) -> http.client.HTTPResponse | None:
        """Send a request and return the reply; None if the request must be sent again.

        If the port is flooded, the kernel resets connections that do not fit into the backlog. A
        request that only reads is then sent again, whether or not the program received it.
        """
        try:
            send()
            return connection.getresponse()
        except (ConnectionResetError, BrokenPipeError):
            if scope is not Scope.READ or self._is_over or time.monotonic() >= deadline:
                raise
            return None

    def _timeout_error(self, error: Exception) -> TelemetryError:
        pid = self.served.pid
        if not is_process_alive(pid):
            return ProgramUnavailable(f"program {pid} has exited")
        if isinstance(error, ConnectionRefusedError):
            return ProgramUnavailable(f"program {pid} no longer serves telemetry")
        return TelemetryError(f"program {pid} did not reply: {error}")


class _Head(http.client.HTTPResponse):
    """A response that is read up to the end of its head; another protocol follows."""

    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp.close()
        # A buffer of one byte does not read beyond the head.
        self.fp = sock.makefile("rb", 1)


def _rejection(body: bytes) -> str:
    """Return the error message of a rejected request."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["error"]["message"])
    return "the program reported no cause"


def is_process_alive(pid: int) -> bool:
    """Return whether a process exists that has not begun to exit."""
    with suppress(OSError, IndexError, ValueError):
        return not has_ended(Path(f"/proc/{pid}/stat").read_text())
    return False


def has_ended(stat: str) -> bool:
    """Return whether a process has ended or begun to exit.

    The kernel closes the port of a killed process before the process becomes a zombie.

    Args:
        stat: The content of `/proc/PID/stat`.
    """
    fields = stat.rpartition(")")[2].split()
    state, flags = fields[0], int(fields[6])
    return state in "ZX" or bool(flags & _EXITING)
