"""Asking a program that serves, from another one of the same user on the same machine."""

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
from mesh_telemetry._serve.scopes import Scope
from mesh_telemetry._serve.served import Served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

__all__ = ["Asking", "ProgramGone", "lives"]

_TIMEOUT_S = 10.0
_PIECE_LEN = 1 << 16
# What a status says; all others say that it could not be done.
_REFUSALS = {400: QueryError, 409: DebugError}


class ProgramGone(TelemetryError):
    """The program that was asked serves no more, or has ended."""


class Asking:
    """Asks one program, from any thread. A context manager.

    Args:
        served: The program.

    Attributes:
        served: The same.

    Example:
        >>> with Asking(served_program(None)) as asking:  # doctest: +SKIP
        ...     asking.query("select count(*) as n from procs")["rows"]
        [{'n': 3}]
    """

    def __init__(self, served: Served) -> None:
        self.served: Served = served
        self._place = urlsplit(served.url).netloc
        self._turn = threading.Lock()
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
        """Asks in SQL; gives `columns`, `rows` and `coverage`.

        Args:
            sql: The query.
            params: The values of its parameters.
            timeout_s: How long the program may say nothing, in seconds.
            scope: Which token is sent. Tables with local variables require `ACT`.

        Raises:
            QueryError: The question cannot be answered.
            ProgramGone: The program has ended, or serves no more.
            TelemetryError: It has not answered in time.
        """
        said = {"sql": sql, "params": params}
        return self.post("/query", said, timeout_s=timeout_s, scope=scope)

    def post(
        self,
        path: str,
        value: object,
        *,
        timeout_s: float = _TIMEOUT_S,
        scope: Scope = Scope.READ,
    ) -> dict[str, Any]:
        """Sends JSON somewhere, and gives the JSON that is answered.

        Args:
            path: Where to.
            value: What is sent.
            timeout_s: How long the program may say nothing, in seconds.
            scope: Which token is sent.

        Raises:
            QueryError: It is refused as wrong.
            ProgramGone: The program has ended, or serves no more.
            TelemetryError: It is refused, or not answered in time.
        """
        with self._answered("POST", path, value, timeout_s, scope=scope) as (_, reply):
            answer: dict[str, Any] = json.loads(reply.read())
            return answer

    def pieces(self, path: str, *, timeout_s: float = _TIMEOUT_S) -> Iterator[bytes]:
        """Gives what lies at a path, as it comes.

        Args:
            path: With its arguments.
            timeout_s: How long the program may say nothing, in seconds.

        Raises:
            QueryError: It is refused as wrong.
            ProgramGone: The program has ended, or serves no more.
            TelemetryError: It is refused, or has not come to its end.
        """
        with self._answered("GET", path, None, timeout_s) as (_, reply):
            while piece := reply.read1(_PIECE_LEN):
                yield piece
            if reply.length:
                raise http.client.IncompleteRead(b"", reply.length)

    def upgraded(
        self, path: str, value: object, kind: str, *, timeout_s: float = _TIMEOUT_S
    ) -> socket.socket:
        """Sends JSON and the act token somewhere, and gives the connection.

        Nothing of HTTP follows on it. It is the caller's from then on, also when this is closed.

        Args:
            path: Where to.
            value: What is sent.
            kind: What the connection is to become.
            timeout_s: How long the program may say nothing before that, in seconds.

        Raises:
            DebugError: What it is to lead to is not there, or in use.
            QueryError: It is refused as wrong.
            ProgramGone: The program has ended, or serves no more.
            TelemetryError: It is refused, or not answered in time.
        """
        with self._answered("POST", path, value, timeout_s, kind, scope=Scope.ACT) as (
            connection,
            _,
        ):
            stream = connection.sock
            stream.settimeout(None)
            # It is not closed with the rest.
            connection.sock = None
        return stream

    def close(self) -> None:
        """Asks no more; who waits for an answer is told."""
        with self._turn:
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
    def _answered(
        self,
        method: str,
        path: str,
        value: object,
        timeout_s: float,
        kind: str | None = None,
        scope: Scope = Scope.READ,
    ) -> Iterator[tuple[http.client.HTTPConnection, http.client.HTTPResponse]]:
        """Sends something, and has what is answered read within the block."""
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
            # Loopback: what a proxy is set for lies elsewhere.
            connection = http.client.HTTPConnection(self._place, timeout=timeout_s)
            connection.response_class = http.client.HTTPResponse if kind is None else _Head
            sock = None
            try:
                connection.connect()
                sock = connection.sock
                with self._turn:
                    if self._is_over:
                        raise ProgramGone(f"program {self.served.pid} is asked no more")
                    self._open.add(sock)
                send = partial(connection.request, method, path, body, headers)
                reply = self._reply_to(send, connection, scope, deadline)
                if reply is None:
                    continue
                with reply:
                    if reply.status != (200 if kind is None else 101):
                        refusal = _REFUSALS.get(reply.status, TelemetryError)
                        raise refusal(_refusal(reply.read()))
                    yield connection, reply
                return
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise self._silent(error) from error
            finally:
                with self._turn:
                    self._open.discard(sock)
                connection.close()

    def _reply_to(
        self,
        send: Callable[[], object],
        connection: http.client.HTTPConnection,
        scope: Scope,
        deadline: float,
    ) -> http.client.HTTPResponse | None:
        """Send a request and return the reply; None if the request must be sent again.

        While others flood the port, the kernel resets connections that had no room in the backlog.
        A request that only reads is sent again then: the program may have received it or not.
        """
        try:
            send()
            return connection.getresponse()
        except (ConnectionResetError, BrokenPipeError):
            if scope is not Scope.READ or self._is_over or time.monotonic() >= deadline:
                raise
            return None

    def _silent(self, error: Exception) -> TelemetryError:
        pid = self.served.pid
        if not lives(pid):
            return ProgramGone(f"program {pid} has ended")
        if isinstance(error, ConnectionRefusedError):
            return ProgramGone(f"program {pid} serves telemetry no more")
        return TelemetryError(f"program {pid} does not answer: {error}")


class _Head(http.client.HTTPResponse):
    """An answer of which the head alone is read: what follows belongs to somebody else."""

    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp.close()
        # A buffer of one byte holds nothing of what follows.
        self.fp = sock.makefile("rb", 1)


def _refusal(body: bytes) -> str:
    """Gives what a program has said of why it refuses."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["error"]["message"])
    return "the program does not say what is wrong"


def lives(pid: int) -> bool:
    """Says whether there is such a process that is not a zombie."""
    with suppress(OSError, IndexError):
        said = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return said[0] not in "ZX"
    return False
