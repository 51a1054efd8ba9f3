"""A client of the extension daemon, which keeps extensions open after a program has exited.

The daemon (`_job.extension_daemon`) is a process of the user, one for each job and machine. It
listens on a Unix socket in the folder of the job.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from mesh_jobs._errors import JobError
from mesh_jobs._state.folder import StateFolder
from mesh_jobs._state.lock import locked

__all__ = ["DAEMON_MODULE", "ExtensionDaemonClient", "log_path", "socket_name"]

DAEMON_MODULE = "mesh_jobs._job.extension_daemon"

_LOCK_S = 30.0
#: Lost hosts may delay the daemon, which must not delay the release of the job.
_END_S = 30.0
_PART_LEN = 64 << 10
_TRIES_MAX = 2


def socket_name() -> str:
    """Return the name of the socket; hidden files are removed with the job."""
    return f".held-{socket.gethostname()}.sock"


def log_path(folder: StateFolder) -> str:
    """Return the path of the daemon's log."""
    return str(folder.path / "logs" / f"held-{socket.gethostname()}.log")


class ExtensionDaemonClient:
    """Opens, lists and closes the extensions that the daemon of a job holds.

    Args:
        folder: The state folder of the job.
    """

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder

    def open(self, kind: str, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Open an extension on the hosts, or refresh it if it is open; return its status.

        Args:
            kind: The name of the entry point of the extension.
            name: A name that is unique among the extensions of that kind.
            fields: The arguments of the entry point.

        Raises:
            JobError: The extension cannot be opened, or one of that name has other fields.
        """
        request = {"action": "open", "kind": kind, "name": name, "fields": dict(fields)}
        for _ in range(_TRIES_MAX):
            with locked(self._folder.path / ".held.lock", _LOCK_S):
                if not self._is_running():
                    self._start()
            # A daemon exits after its last extension was closed, so the next attempt starts another
            # one.
            if (answer := self._request(request)) is not None:
                return dict(answer)
        raise JobError(f"the process that holds it is not running: see {log_path(self._folder)}")

    def close(self, kind: str, name: str) -> None:
        """Close an extension.

        Raises:
            JobError: No extension has that name.
        """
        if self._request({"action": "close", "kind": kind, "name": name}) is None:
            raise JobError(f"the job has no {kind} {name!r}")

    def statuses(self, kind: str) -> list[dict[str, Any]]:
        """Return the status of all extensions of a kind, each with its `name`."""
        return list(self._request({"action": "list", "kind": kind}) or ())

    def end(self) -> None:
        """Close all extensions; does nothing if no daemon runs."""
        self._request({"action": "end"}, _END_S)

    def _is_running(self) -> bool:
        with suppress(OSError), _connected(self._folder):
            return True
        return False

    def _request(self, request: Mapping[str, Any], timeout_s: float | None = None) -> Any:
        """Send a request; return None if no daemon runs or it does not respond in time."""
        try:
            with _connected(self._folder) as stream:
                stream.settimeout(timeout_s)
                stream.sendall(json.dumps(request).encode() + b"\n")
                said = b""
                while part := stream.recv(_PART_LEN):
                    said += part
        except OSError:
            return None
        if not said:
            return None
        answer = json.loads(said)
        if "error" in answer:
            raise JobError(answer["error"])
        return answer["answer"]

    def _start(self) -> None:
        """Start a daemon; connections queue on its socket until it accepts them."""
        path = self._folder.path
        with _opened(self._folder) as folder, socket.socket(socket.AF_UNIX) as listener:
            (path / socket_name()).unlink(missing_ok=True)
            before = os.umask(0o077)
            try:
                listener.bind(f"/proc/self/fd/{folder}/{socket_name()}")
            finally:
                os.umask(before)
            listener.listen()
            log = os.open(log_path(self._folder), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            words = [DAEMON_MODULE, str(path), str(listener.fileno())]
            try:
                daemon = subprocess.Popen(
                    [sys.executable, "-P", "-m", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[listener.fileno()],
                    # In a new session, the daemon does not receive Ctrl-C from the terminal.
                    start_new_session=True,
                )
            finally:
                os.close(log)
        # The daemon outlives this program; do not wait for it.
        daemon.returncode = 0


@contextmanager
def _connected(folder: StateFolder) -> Iterator[socket.socket]:
    with _opened(folder) as number, socket.socket(socket.AF_UNIX) as stream:
        stream.connect(f"/proc/self/fd/{number}/{socket_name()}")
        yield stream


@contextmanager
def _opened(folder: StateFolder) -> Iterator[int]:
    """Open the folder as a descriptor, because the length of a Unix socket path is limited."""
    number = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield number
    finally:
        os.close(number)
