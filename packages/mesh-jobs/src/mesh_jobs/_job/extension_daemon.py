"""The extension daemon: `python -m mesh_jobs._job.extension_daemon`.

The daemon keeps extensions of a job open while no program does. `_extensions.daemon_client` starts
it. It attaches to the hosts in an additional session, so another program can use them, and exits
when its last extension is closed, when the job has ended, or when all hosts are lost.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh_core import MeshError, shutdown_context
from mesh_jobs._errors import JobError
from mesh_jobs._extensions.extension import load_extension
from mesh_jobs._job.job import Job
from mesh_jobs._state.folder import StateFolder

if TYPE_CHECKING:
    from mesh_core import HostMesh
    from mesh_jobs._extensions.extension import OpenJobExtension

__all__: list[str] = []

#: The intervals for checking that the job is still applied, and that its hosts are reachable.
_POLL_S = 0.5
_HOSTS_S = 5.0
_ANSWER_S = 10.0
_UP_S = 60.0
#: The program that starts the daemon sends a request immediately, unless it was killed.
_FIRST_S = 60.0
_END_S = 15.0
_REQUEST_LEN_MAX = 1 << 20


@dataclass(frozen=True)
class _HeldExtension:
    fields: dict[str, Any]
    extension: OpenJobExtension


class _ExtensionDaemon:
    """Server that keeps extensions open and handles requests.

    Args:
        folder: The state folder of the job.
        listener: The listening socket.
    """

    def __init__(self, folder: StateFolder, listener: socket.socket) -> None:
        record = folder.read()
        if record is None:
            raise JobError(f"no job is applied in {folder.path}")
        self._folder = folder
        self._listener = listener
        self._allocation_id = record.allocation_id
        self._job = Job._loaded(folder, record)
        self._meshes: dict[str, HostMesh] = {}
        self._held: dict[tuple[str, str], _HeldExtension] = {}

    def run(self) -> None:
        """Serve requests until no extension is open."""
        looked = began = time.monotonic()
        answered = False
        while self._held or not (answered or time.monotonic() - began > _FIRST_S):
            if select.select([self._listener], [], [], _POLL_S)[0]:
                answered = self._serve_next() or answered
            if not self._is_applied():
                return
            if self._held and time.monotonic() - looked >= _HOSTS_S:
                if not self._has_reachable_host():
                    return
                looked = time.monotonic()

    def close(self) -> None:
        """Close all extensions and detach from the hosts."""
        self._close_all()
        if self._meshes:
            with suppress(MeshError, TimeoutError):
                self._job.detach()
        with suppress(MeshError, TimeoutError):
            shutdown_context().get(timeout=_END_S)

    def _is_applied(self) -> bool:
        record = self._folder.read()
        is_same = record is not None and record.allocation_id == self._allocation_id
        return is_same and record is not None and not record.is_ending

    def _has_reachable_host(self) -> bool:
        """Return whether any host is reachable; replace lost hosts if the job has new ones."""
        count = lost = 0
        for hosts in self._meshes.values():
            flat = hosts.flatten("host")
            count += len(flat)
            lost += sum(not _is_reachable(flat.slice(host=rank)) for rank in range(len(flat)))
        if lost:
            with suppress(MeshError):
                self._attach(_ANSWER_S)
                return True
        return lost < count

    def _serve_next(self) -> bool:
        """Serve one connection; return whether it sent a request."""
        stream, _ = self._listener.accept()
        with stream:
            stream.settimeout(_ANSWER_S)
            with suppress(OSError):
                said = b""
                while not said.endswith(b"\n") and len(said) < _REQUEST_LEN_MAX:
                    part = stream.recv(1 << 16)
                    if not part:
                        return False  # A liveness check sends no request.
                    said += part
                stream.sendall(json.dumps(self._handle(json.loads(said))).encode())
                return True
        return False

    def _handle(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            if request["action"] == "open":
                return {"answer": self._open(request["kind"], request["name"], request["fields"])}
            if request["action"] == "close":
                held = self._held.pop((request["kind"], request["name"]), None)
                if held is not None:
                    held.extension.close()
                return {"answer": None if held is None else {}}
            if request["action"] == "end":
                self._close_all()
                return {"answer": {}}
            return {"answer": self._statuses(request["kind"])}
        except (MeshError, ValueError, OSError) as error:
            return {"error": str(error).partition("\n")[0]}

    def _open(self, kind: str, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        held = self._held.get((kind, name))
        if held is not None and held.fields != fields:
            changed = ", ".join(one for one in fields if held.fields.get(one) != fields[one])
            raise JobError(
                f"the job already has a {kind} {name!r} with a different {changed}: close it first"
            )
        if not self._meshes:
            self._attach(_UP_S)
        if held is not None:
            held.extension.refresh()
        else:
            opened = load_extension(kind, fields).open(self._meshes)
            held = self._held[kind, name] = _HeldExtension(fields, opened)
        return {"name": name, **held.extension.status()}

    def _statuses(self, kind: str) -> list[dict[str, Any]]:
        found = []
        for (one, name), held in self._held.items():
            if one == kind:
                try:
                    found.append({"name": name, **held.extension.status()})
                except MeshError as error:
                    found.append({"name": name, "problem": str(error).partition("\n")[0]})
        return found

    def _close_all(self) -> None:
        while self._held:
            _, held = self._held.popitem()
            # Extensions hold no resources on lost hosts.
            with suppress(MeshError):
                held.extension.close()

    def _attach(self, timeout_s: float) -> None:
        state = self._job.state(timeout_s, observer=True)
        self._meshes = {name: state[name] for name in state}


def _is_reachable(host: HostMesh) -> bool:
    try:
        host.initialized.get(timeout=_ANSWER_S)
    except (MeshError, TimeoutError):
        return False
    return True


def _end(number: int, frame: object) -> None:
    sys.exit(128 + number)


def main() -> None:
    """Run with the arguments `FOLDER FD`: the state folder of a job, and the listening socket."""
    folder, number = StateFolder(Path(sys.argv[1])), int(sys.argv[2])
    os.set_inheritable(number, False)
    for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(one, _end)
    with socket.socket(fileno=number) as listener:
        daemon = _ExtensionDaemon(folder, listener)
        try:
            daemon.run()
        finally:
            # A client that connects after this starts another daemon.
            listener.close()
            daemon.close()


if __name__ == "__main__":
    main()
