"""A port of this machine through which an editor connects to a session."""

from __future__ import annotations

import json
import os
import select
import socket
import sys
from contextlib import suppress
from threading import Thread

from mesh_telemetry._errors import DebugError
from mesh_telemetry._serve.peer_user import PeerUsers

__all__ = ["relay_editor"]

_LOOPBACK = "127.0.0.1"
_BACKLOG = 16
_PIECE_LEN = 1 << 16


def relay_editor(stream: socket.socket, port: int) -> None:
    """Wait for an editor of this user, and connect it to a session until either side ends.

    Connections of other users of the machine are rejected, because an editor can run code.

    Args:
        stream: The stream to the session.
        port: The port on the loopback interface; 0 for any free port.

    Raises:
        DebugError: The port is taken, or the session ended before an editor connected.
    """
    with stream, suppress(KeyboardInterrupt):
        editor = _accepted(stream, port)
        with editor:
            back = Thread(target=_pump, args=(stream, editor), daemon=True)
            back.start()
            _pump(editor, stream)
            back.join()


def _accepted(stream: socket.socket, port: int) -> socket.socket:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((_LOOPBACK, port))
        except OSError as error:
            raise DebugError(
                f"cannot listen on port {port} ({error.strerror}): choose another one with --port"
            ) from error
        listener.listen(_BACKLOG)
        _print_configuration(listener.getsockname()[1])
        users = PeerUsers()
        try:
            while True:
                ready, _, _ = select.select([listener, stream], [], [])
                if stream in ready and not stream.recv(1, socket.MSG_PEEK):
                    raise DebugError(
                        "the session has ended: run mesh debug list to see the paused sessions"
                    )
                if listener in ready:
                    editor, _ = listener.accept()
                    if _is_permitted(users.of(editor)):
                        return editor
                    editor.close()
        finally:
            users.close()


def _is_permitted(user: int | None) -> bool:
    """Return whether an editor of this user may attach; it can run code as this user."""
    if user == os.geteuid():
        return True
    whose = "an unknown user" if user is None else f"user {user}"
    print(f"rejected a connection of {whose}", file=sys.stderr, flush=True)
    return False


def _print_configuration(port: int) -> None:
    configuration = {
        "name": "mesh",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": "localhost", "port": port},
        "justMyCode": False,
    }
    print("waiting for one editor; add this to `configurations` in .vscode/launch.json:")
    print(json.dumps(configuration, indent=4), flush=True)
    print("press Ctrl-C to let the session continue", file=sys.stderr, flush=True)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(_PIECE_LEN):
            target.sendall(piece)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
