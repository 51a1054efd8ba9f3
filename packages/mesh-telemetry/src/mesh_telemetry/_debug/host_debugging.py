"""Connects clients to the debug sessions of one host."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mesh_telemetry._debug.failure_rules import write_rules
from mesh_telemetry._debug.lines import LineReader, encoded
from mesh_telemetry._debug.session import PREFIX
from mesh_telemetry._errors import DebugError
from mesh_telemetry._events.proc_folder import proc_folders
from mesh_telemetry._events.process_socket import RULES, request_all, short_socket_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mesh_telemetry._debug.failure_rules import FailureRule

__all__ = ["CommandResult", "HostDebugging"]

#: The result of a command in one session: its id, the output, and the error instead of it.
CommandResult = tuple[str, str, str | None]

# A connection is closed if its client sends no request for this time.
_LEASE_S = 20.0
_CONNECTIONS_MAX = 256
_GREETING_S = 60.0
_PIECE_LEN = 1 << 16
_RULES_S = 2.0


class _Connection:
    """The connection of one client to a session."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.lease: asyncio.TimerHandle | None = None
        self.waiting_count = 0


class HostDebugging:
    """Connections to the sessions of a host, for use in one event loop.

    Args:
        folder: The folder of the host.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._connections: dict[str, _Connection] = {}

    async def open(self, session: str, greeting: dict[str, Any]) -> str | None:
        """Attach to a session.

        Returns:
            The name of the connection; None if the session is not on this host.

        Raises:
            DebugError: Another client is attached, or the session is ending.
        """
        found = self._find(session)
        if found is None:
            return None
        if len(self._connections) >= _CONNECTIONS_MAX:
            raise DebugError(
                f"{_CONNECTIONS_MAX} clients are attached on this host, the maximum: detach some"
            )
        connection = await _attach(found, session, greeting)
        name = os.urandom(8).hex()
        self._connections[name] = connection
        self._renew(name)
        return name

    async def send(self, name: str, piece: bytes) -> bool:
        """Send bytes to the session; return whether it still exists."""
        connection = self._connections.get(name)
        if connection is None:
            return False
        self._renew(name)
        try:
            connection.writer.write(piece)
            await connection.writer.drain()
        except OSError:
            return False
        return True

    async def receive(self, name: str, wait_s: float) -> bytes | None:
        """Return the bytes that the session has sent; empty if there are none within `wait_s`.

        Returns:
            The bytes; None once the session has ended.
        """
        connection = self._connections.get(name)
        if connection is None:
            return None
        self._renew(name)
        try:
            async with asyncio.timeout(min(wait_s, _LEASE_S / 2)):
                piece = await connection.reader.read(_PIECE_LEN)
        except TimeoutError:
            return b""
        except OSError:
            piece = b""
        return piece or None

    def close(self, name: str) -> None:
        """Detach from a session; later calls do nothing."""
        connection = self._connections.pop(name, None)
        if connection is not None:
            if connection.lease is not None:
                connection.lease.cancel()
            connection.writer.close()

    def close_all(self) -> None:
        """Detach from all sessions."""
        for name in list(self._connections):
            self.close(name)

    async def run(
        self, sessions: Sequence[str], command: str, timeout_s: float
    ) -> list[CommandResult]:
        """Run a command in sessions concurrently; sessions of other hosts are skipped."""
        here = [session for session in sessions if self._find(session) is not None]
        return list(await asyncio.gather(*(self._run(one, command, timeout_s) for one in here)))

    async def release(self, sessions: Sequence[str]) -> list[CommandResult]:
        """Let sessions without a client continue; sessions of other hosts are skipped."""
        found: list[CommandResult] = []
        for session in sessions:
            folder = self._find(session)
            if folder is None:
                continue
            try:
                connection = await _attach(folder, session, {"how": "release"})
            except DebugError as error:
                found.append((session, "", str(error)))
            else:
                await _disconnect(connection)
                found.append((session, "", None))
        return found

    async def set_rules(self, rules: Sequence[FailureRule]) -> None:
        """Set the rules for pausing at failures on this host."""
        write_rules(self._folder, rules)
        living = [one.path for one in proc_folders(self._folder, None) if one.is_alive]
        await asyncio.to_thread(request_all, living, RULES, _RULES_S)

    async def _run(self, session: str, command: str, timeout_s: float) -> CommandResult:
        folder = self._find(session)
        try:
            if folder is None:
                raise DebugError(f"session {session} has ended")
            greeting = {"how": "attach", "client": "mesh debug cast", "is_kept": True}
            async with asyncio.timeout(timeout_s):
                connection = await _attach(folder, session, greeting)
                try:
                    return session, await _run_command(connection, command), None
                finally:
                    await _disconnect(connection)
        except TimeoutError:
            return session, "", f"no reply within {timeout_s:g} s"
        except (DebugError, OSError) as error:
            return session, "", str(error)

    def _find(self, session: str) -> Path | None:
        if session.isalnum():
            with suppress(OSError):
                for folder in self._folder.iterdir():
                    if (folder / f"{PREFIX}{session}").exists():
                        return folder
        return None

    def _renew(self, name: str) -> None:
        connection = self._connections[name]
        if connection.lease is not None:
            connection.lease.cancel()
        loop = asyncio.get_running_loop()
        connection.lease = loop.call_later(_LEASE_S, self.close, name)


async def _attach(folder: Path, session: str, greeting: dict[str, Any]) -> _Connection:
    """Attach to the session whose socket is in a folder.

    Raises:
        DebugError: The session rejects the connection.
    """
    made = socket.socket(socket.AF_UNIX)
    made.setblocking(False)
    try:
        with short_socket_path(folder, PREFIX + session) as path:
            made.connect(path)
        reader, writer = await asyncio.open_unix_connection(sock=made)
    except OSError as error:
        made.close()
        raise DebugError(
            f"session {session} has ended: run mesh debug list to see the paused sessions"
        ) from error
    try:
        writer.write(encoded(greeting))
        async with asyncio.timeout(_GREETING_S):
            (message,) = LineReader().feed(await reader.readline()) or [{}]
        if not message.get("ok"):
            raise DebugError(str(message.get("error") or f"session {session} is ending"))
    except (OSError, ValueError) as error:
        writer.close()
        raise DebugError(f"session {session} is ending: {error}") from error
    except BaseException:
        writer.close()
        raise
    return _Connection(reader, writer)


async def _disconnect(connection: _Connection) -> None:
    """Close a connection before the caller gets its result and attaches again."""
    connection.writer.close()
    with suppress(OSError):
        await connection.writer.wait_closed()


async def _run_command(connection: _Connection, command: str) -> str:
    """Run a command, and return its output.

    Raises:
        DebugError: The session ends before.
    """
    lines = LineReader()
    shown: list[str] = []
    prompt_count = 0
    while piece := await connection.reader.read(_PIECE_LEN):
        for message in lines.feed(piece):
            if "text" in message and prompt_count:
                shown.append(message["text"])
            if "end" in message:
                return "".join(shown) or str(message["end"])
            if "prompt" in message:
                prompt_count += 1
                if prompt_count == 1:
                    connection.writer.write(encoded({"line": command}))
                    await connection.writer.drain()
                else:
                    return "".join(shown)
    raise DebugError("the session has ended")
