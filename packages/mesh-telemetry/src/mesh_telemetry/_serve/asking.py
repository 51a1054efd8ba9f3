"""Asking a program that serves, from another one of the same user on the same machine."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mesh_telemetry._errors import QueryError, TelemetryError
from mesh_telemetry._serve.served import Served

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

__all__ = ["Asking", "ProgramGone", "lives"]

_TIMEOUT_S = 10.0


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
        self._open: set[http.client.HTTPConnection] = set()
        self._is_over = False

    def query(
        self,
        sql: str,
        params: Sequence[object] | Mapping[str, object] | None = None,
        *,
        timeout_s: float = _TIMEOUT_S,
    ) -> dict[str, Any]:
        """Asks in SQL; gives `columns`, `rows` and `coverage`.

        Raises:
            QueryError: The question cannot be answered.
            ProgramGone: The program has ended, or serves no more.
            TelemetryError: It has not answered in time.
        """
        return self.post("/query", {"sql": sql, "params": params}, timeout_s=timeout_s)

    def post(self, path: str, value: object, *, timeout_s: float = _TIMEOUT_S) -> dict[str, Any]:
        """Sends JSON somewhere, and gives the JSON that is answered.

        Raises:
            QueryError: It is refused as wrong.
            ProgramGone: The program has ended, or serves no more.
            TelemetryError: It is refused, or not answered in time.
        """
        body = json.dumps(value).encode()
        headers = {
            "Authorization": f"Bearer {self.served.token}",
            "Content-Type": "application/json",
        }
        # Loopback: what a proxy is set for lies elsewhere.
        connection = http.client.HTTPConnection(self._place, timeout=timeout_s)
        with self._turn:
            if self._is_over:
                raise ProgramGone(f"program {self.served.pid} is asked no more")
            self._open.add(connection)
        try:
            connection.connect()
            if self._is_over:
                raise ProgramGone(f"program {self.served.pid} is asked no more")
            connection.request("POST", path, body, headers)
            reply = connection.getresponse()
            answer: dict[str, Any] = json.loads(reply.read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._silent(error) from error
        finally:
            with self._turn:
                self._open.discard(connection)
            connection.close()
        if reply.status == 200:
            return answer
        kind = QueryError if reply.status == 400 else TelemetryError
        raise kind(answer["error"]["message"])

    def close(self) -> None:
        """Asks no more; who waits for an answer is told."""
        with self._turn:
            self._is_over = True
            waiting = [one.sock for one in self._open if one.sock is not None]
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

    def _silent(self, error: Exception) -> TelemetryError:
        pid = self.served.pid
        if not lives(pid):
            return ProgramGone(f"program {pid} has ended")
        if isinstance(error, ConnectionRefusedError):
            return ProgramGone(f"program {pid} serves telemetry no more")
        return TelemetryError(f"program {pid} does not answer: {error}")


def lives(pid: int) -> bool:
    """Says whether there is such a process that is not a zombie."""
    with suppress(OSError, IndexError):
        said = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return said[0] not in "ZX"
    return False
