"""Requests of commands to the program: save a case of an actor that has not failed."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path

from mesh_core._cases.program_socket import read_line, socket_folder, socket_path
from mesh_core._errors import MeshError
from mesh_core._recording.collector import Failure, case_collector, case_folder
from mesh_core._recording.errors import NotRecorded
from mesh_core._serialization.wire import proc_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._runtime.runtime import Runtime

__all__ = ["SaveRequests"]

_CLIENT_LIMIT_S = 10.0
_HOST_LIMIT_S = 10.0
_NAMES_SHOWN_MAX = 20


class SaveRequests:
    """A socket on which commands of the same user on this machine send requests.

    Raises:
        OSError: The socket cannot be created.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        folder = socket_folder()
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.lstat(folder)
        if found.st_uid != os.geteuid() or found.st_mode & 0o77:
            raise PermissionError(f"{folder} is not private to this user")
        self._path = socket_path(os.getpid())
        Path(self._path).unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._path)
        self._listener.listen()
        threading.Thread(target=self._serve, name="mesh-record-save", daemon=True).start()

    def close(self) -> None:
        """Remove the socket; requests in progress end with the program."""
        Path(self._path).unlink(missing_ok=True)
        # This wakes the thread, which `close` does not.
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # A fork of this process has shut it down.
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.settimeout(_CLIENT_LIMIT_S)
                    request = json.loads(read_line(connection))
                    connection.sendall(json.dumps(self._reply(request)).encode() + b"\n")
                except (OSError, ValueError):
                    # The client has disconnected, or only checked whether the program is alive.
                    continue

    def _reply(self, request: Any) -> dict[str, Any]:
        try:
            if request["do"] == "folder":
                return {"folder": str(case_folder().absolute())}
            path = self._save(str(request["mesh"]), request["rank"], str(request["reason"]))
        except (MeshError, OSError) as error:
            return {"error": str(error)}
        except Exception as error:
            # An invalid request must not end the program.
            return {"error": f"the request failed: {error!r}"}
        return {"path": str(path.absolute())}

    def _save(self, mesh: str, rank: int | None, reason: str) -> Path:
        actors = self._actors()
        found = [one for one in actors if one[0] == mesh and rank in (None, one[1])]
        ranks = sorted({one[1] for one in found})
        if len(ranks) > 1:
            shown = ", ".join(f"{mesh}[{one}]" for one in ranks[:_NAMES_SHOWN_MAX])
            raise NotRecorded(f"the mesh {mesh} has {len(ranks)} recorded actors: choose {shown}")
        if not found:
            wanted = mesh if rank is None else f"{mesh}[{rank}]"
            names = sorted({f"{name}[{number}]" for name, number, *_ in actors})
            shown = ", ".join(names[:_NAMES_SHOWN_MAX]) or "none"
            raise NotRecorded(f"{wanted} is not recorded: the recorded actors are {shown}")
        # If an actor was restarted, perhaps in another process, the latest start counts.
        _, _, proc, incarnation, port, _ = max(found, key=lambda one: one[5])
        failure = Failure(proc, incarnation, port, 0, reason)
        saved = case_collector(self._runtime).save(failure)
        if saved is None:
            raise NotRecorded(f"the recording of {mesh}[{ranks[0]}] is lost")
        return saved

    def _actors(self) -> list[tuple[str, int, int, int, int, int]]:
        """Return the mesh, rank, process, incarnation, port and start of all recorded actors."""
        found = []
        for host in sorted({0, *self._runtime.places.living()}):
            agent = proc_id(host, 0)
            listed = self._runtime.ask_agent(agent, "recorded_actors", timeout=_HOST_LIMIT_S)
            for mesh, rank, slot, incarnation, port, time_ns in listed or ():
                found.append((mesh, rank, proc_id(host, slot), incarnation, port, time_ns))
        return found
