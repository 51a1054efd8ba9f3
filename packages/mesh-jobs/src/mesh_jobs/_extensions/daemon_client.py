"""Equipment that stays with a job when the program that asked for it has ended.

A process of the user's holds it, one for each job and machine: `_job.extension_daemon`. It listens
at a socket in the folder of the job.
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
#: Hosts that are lost may keep a daemon waiting, and not who kills the job.
_END_S = 30.0
_PART_LEN = 64 << 10
_TRIES_MAX = 2


def socket_name() -> str:
    """Gives the name of the socket; hidden, so that it goes with the job."""
    return f".held-{socket.gethostname()}.sock"


def log_path(folder: StateFolder) -> str:
    """Gives where the daemon's output is."""
    return str(folder.path / "logs" / f"held-{socket.gethostname()}.log")


class ExtensionDaemonClient:
    """What is held for a job.

    Args:
        folder: The state of the job.
    """

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder

    def open(self, kind: str, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Gives it to the hosts, or refreshes it if they have it; says how it is.

        Args:
            kind: The name of its entry point.
            name: What tells it from others of its kind.
            fields: What it is made of.

        Raises:
            JobError: It cannot be had, or there is another of that name.
        """
        order = {"do": "open", "kind": kind, "name": name, "fields": dict(fields)}
        for _ in range(_TRIES_MAX):
            with locked(self._folder.path / ".held.lock", _LOCK_S):
                if not self._is_running():
                    self._start()
            # One that has just let go of its last ends, and another one is started.
            if (answer := self._request(order)) is not None:
                return dict(answer)
        raise JobError(f"what holds it does not run: see {log_path(self._folder)}")

    def close(self, kind: str, name: str) -> None:
        """Takes it from the hosts.

        Raises:
            JobError: There is none of that name.
        """
        if self._request({"do": "close", "kind": kind, "name": name}) is None:
            raise JobError(f"there is no {kind} {name!r} in the job")

    def statuses(self, kind: str) -> list[dict[str, Any]]:
        """Says how all of a kind are, each with its `name`."""
        return list(self._request({"do": "list", "kind": kind}) or ())

    def end(self) -> None:
        """Takes all from the hosts, of all kinds; nothing where nothing is held."""
        self._request({"do": "end"}, _END_S)

    def _is_running(self) -> bool:
        with suppress(OSError), _connected(self._folder):
            return True
        return False

    def _request(self, order: Mapping[str, Any], timeout_s: float | None = None) -> Any:
        """Asks the daemon; None when there is none, or it says nothing for so many seconds."""
        try:
            with _connected(self._folder) as stream:
                stream.settimeout(timeout_s)
                stream.sendall(json.dumps(order).encode() + b"\n")
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
        """Starts a daemon; who connects is answered as soon as that runs."""
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
                    # Ctrl-C in the user's terminal is not meant for it.
                    start_new_session=True,
                )
            finally:
                os.close(log)
        # It outlives this program, which does not wait for it.
        daemon.returncode = 0


@contextmanager
def _connected(folder: StateFolder) -> Iterator[socket.socket]:
    with _opened(folder) as number, socket.socket(socket.AF_UNIX) as stream:
        stream.connect(f"/proc/self/fd/{number}/{socket_name()}")
        yield stream


@contextmanager
def _opened(folder: StateFolder) -> Iterator[int]:
    """Opens the folder: the path of a socket has to be short, and that of the folder may not be."""
    number = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield number
    finally:
        os.close(number)
