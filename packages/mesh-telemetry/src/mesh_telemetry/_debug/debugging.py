"""Access to the debug sessions on all hosts, from the process of the program."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from mesh_core import MeshError
from mesh_telemetry._debug.lines import LineReader, encoded
from mesh_telemetry._errors import DebugError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from mesh_telemetry._debug.host_debugging import CommandResult
    from mesh_telemetry._hosts.coordinator import Coordinator
    from mesh_telemetry._hosts.host_rows import HostRows

__all__ = ["DebugConnection", "DebugConsole", "Debugging"]

_REPLY_TIMEOUT_S = 30.0
_POLL_S = 5.0


class DebugConnection:
    """A connection to a debug session on any host."""

    def __init__(self, rows: HostRows, name: str) -> None:
        self._rows = rows
        self._name = name

    def send(self, piece: bytes) -> None:
        """Send bytes.

        Raises:
            DebugError: The session has ended.
        """
        try:
            is_there = self._rows.debug_send.call_one(self._name, piece).get(_REPLY_TIMEOUT_S)
        except (MeshError, TimeoutError) as error:
            raise DebugError(f"the host of the session did not reply: {error}") from error
        if not is_there:
            raise DebugError(
                "the session has ended: run mesh debug list to see the paused sessions"
            )

    def receive(self, wait_s: float = _POLL_S) -> bytes | None:
        """Return received bytes; empty if there are none within `wait_s`, and None at the end."""
        try:
            future = self._rows.debug_receive.call_one(self._name, wait_s)
            piece: bytes | None = future.get(_REPLY_TIMEOUT_S)
        except (MeshError, TimeoutError):
            return None
        return piece

    def close(self) -> None:
        """Detach from the session."""
        self._rows.debug_close.broadcast(self._name)


class Debugging:
    """Operations on the debug sessions of a program.

    Args:
        coordinator: The actor that knows the hosts.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def open(self, session: str, greeting: dict[str, Any]) -> DebugConnection:
        """Attach to a session.

        Raises:
            DebugError: The session does not exist, or another client is attached.
        """
        futures = [(rows, rows.debug_open.call_one(session, greeting)) for rows in self._hosts()]
        failure = ""
        for rows, future in futures:
            try:
                name = future.get(_REPLY_TIMEOUT_S)
            except DebugError as error:
                raise DebugError(str(error)) from None
            except (MeshError, TimeoutError) as error:
                failure = f"; a host did not reply: {error}"
                continue
            if name is not None:
                return DebugConnection(rows, name)
        raise DebugError(
            f"no session {session!r}: run mesh debug list to see the paused sessions{failure}"
        )

    def run(self, sessions: Sequence[str], command: str, timeout_s: float) -> list[CommandResult]:
        """Run a command in sessions; return the result of each."""
        hosts = self._hosts()
        futures = [rows.debug_run.call_one(list(sessions), command, timeout_s) for rows in hosts]
        return _collected(sessions, futures, timeout_s + _REPLY_TIMEOUT_S)

    def release(self, sessions: Sequence[str]) -> list[CommandResult]:
        """Let sessions continue to which no client is attached."""
        futures = [rows.debug_release.call_one(list(sessions)) for rows in self._hosts()]
        return _collected(sessions, futures, _REPLY_TIMEOUT_S)

    def _hosts(self) -> list[HostRows]:
        handles = self._coordinator.hosts.call_one().get(_REPLY_TIMEOUT_S)
        return [handle.rows for handle in handles if handle.rows is not None]


class DebugConsole:
    """A client of a debug session for use in a program, returned by `Telemetry.debug`.

    A context manager; when it exits, the code continues unless `close` was called with `is_kept`.
    """

    def __init__(self, connection: DebugConnection) -> None:
        self._connection = connection
        self._lines = LineReader()
        self._messages: list[dict[str, Any]] = []
        self._is_prompted = self._is_closed = False
        self.is_ended: bool = False

    def run(self, command: str = "", timeout: float = 60.0) -> str:
        """Run a pdb command, and return its output; `is_ended` is true if the session ended.

        Args:
            command: The command; if empty, return the current location.
            timeout: Seconds to wait for the output.

        Raises:
            DebugError: The session has ended.
            TimeoutError: The output is not complete in time.
        """
        until = time.monotonic() + timeout
        shown = "" if self._is_prompted else self._until_prompt(until)
        if not command:
            return shown
        if self.is_ended:
            raise DebugError("the session has ended: attach to another one")
        self._is_prompted = False
        self._connection.send(encoded({"line": command}))
        return self._until_prompt(until)

    def close(self, *, is_kept: bool = False) -> None:
        """Detach from the session; later calls do nothing.

        Args:
            is_kept: Whether the code stays paused for the next client.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if is_kept and not self.is_ended:
            self._connection.send(encoded({"is_kept": True}))
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _until_prompt(self, until: float) -> str:
        shown = ""
        while True:
            while self._messages:
                message = self._messages.pop(0)
                shown += str(message.get("text", ""))
                if "prompt" in message:
                    self._is_prompted = True
                    return shown
                if "end" in message:
                    self.is_ended = True
                    return shown
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(
                    "the session did not reply in time: the command may still be running"
                )
            piece = self._connection.receive(min(left_s, _POLL_S))
            if piece is None:
                self.is_ended = True
                return shown
            self._messages += self._lines.feed(piece)


def _collected(
    sessions: Sequence[str], futures: Sequence[Any], timeout_s: float
) -> list[CommandResult]:
    """Return the results of all hosts in the order of the sessions; missing ones get an error."""
    until = time.monotonic() + timeout_s
    found: dict[str, CommandResult] = {}
    for future in futures:
        try:
            for message in future.get(max(until - time.monotonic(), 0.0)):
                found[message[0]] = message
        except (MeshError, TimeoutError):
            continue
    missing = "no such session: run mesh debug list to see the paused sessions"
    return [found.get(session, (session, "", missing)) for session in dict.fromkeys(sessions)]
