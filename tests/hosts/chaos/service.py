"""The program of the chaos workload: a service of four processes on each host."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

import mesh_core
from mesh_core import (
    Actor,
    Credentials,
    HostDied,
    MeshError,
    RestartPolicy,
    attach_to_workers,
    configure,
    endpoint,
)

#: Processes on each host.
PROCS = 4

#: Time limit for attaching a host: a worker serves its previous job until that lease expires.
JOIN_LIMIT_S = 30.0

#: Mesh replaces a process each time it is killed.
ALWAYS = RestartPolicy("permanent", intensity_max=1_000_000, period_s=1.0)


class Recorder(Actor):
    """Records each number before it replies, in a single atomic append."""

    def __init__(self, folder: Path) -> None:
        """Register the process of the actor."""
        host = socket.gethostname()
        (folder / "pids" / f"{host}.{os.getpid()}").touch()
        options = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._done = os.open(folder / "done" / host, options, 0o600)

    @endpoint
    def note(self, number: int) -> int:
        """Execute a call."""
        os.write(self._done, b"%d\n" % number)
        return number


class _Service:
    """The current actors of each host."""

    def __init__(self, credentials: str, folder: Path) -> None:
        self._credentials = Credentials.load(credentials)
        self._folder = folder
        self._recorders: dict[str, Any] = {}
        self._lost: set[str] = set()
        self._joining: dict[str, threading.Lock] = {}

    def join(self, address: str) -> None:
        """Attach a worker to the job and open the service there."""
        hosts = attach_to_workers([address], credentials=self._credentials)
        recorders = hosts.spawn_procs({"procs": PROCS}).spawn(
            "recorder", Recorder, self._folder, restart=ALWAYS
        )
        recorders.initialized.get(timeout=JOIN_LIMIT_S)
        self._recorders[address] = recorders

    def note(self, number: int, address: str) -> str | None:
        """Make a call; return the type of the error with which it ended, or None.

        If the host is dead, attach it again as a new host as soon as possible.
        """
        recorders = self._recorders[address]
        try:
            answer = recorders.slice(hosts=0, procs=number % PROCS).note.call_one(number).get()
        except HostDied as died:
            self._reattach(address, recorders, died.reason)
            return "HostDied"
        except MeshError as error:
            return type(error).__name__
        assert answer == number
        return None

    def _reattach(self, address: str, dead: Any, reason: object) -> None:
        """Attach the host in one thread only, although several threads may have found it dead."""
        with self._joining.setdefault(address, threading.Lock()):
            if self._recorders[address] is not dead:
                return
            if address not in self._lost:
                self._lost.add(address)
                with open(self._folder / "deaths", "a") as deaths:
                    deaths.write(f"{address} {reason}\n")
            try:
                self.join(address)
            except MeshError:
                return  # The worker is not back yet: the next call tries again.
            self._lost.discard(address)


_service: _Service | None = None


def open_service(addresses: list[str], credentials: str, folder: str) -> None:
    """Open the service on all hosts."""
    global _service
    configure(host_lease_s=3.0, attach_timeout_s=5.0)
    # Callers receive all losses as errors, and the program must continue.
    mesh_core.unhandled_fault_hook = lambda failure: None
    _service = _Service(credentials, Path(folder))
    for address in addresses:
        _service.join(address)


def note(number: int, address: str) -> str | None:
    """Make a call; return the type of the error with which it ended, or None."""
    assert _service is not None
    return _service.note(number, address)
