"""The command that the SSH backend runs on a machine: `python -m mesh_jobs._ssh.remote_command`.

It reads one request as JSON from standard input, executes it, and prints one response as JSON. It
stores data only in one folder per allocation, which is removed with its workers.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mesh_jobs._atomic_files import private_folder, read_json, write_private
from mesh_jobs._backend.allocation_request import AllocationRequest
from mesh_jobs._backend.log_tail import tail
from mesh_jobs._client.process import (
    client_log,
    client_output,
    client_status,
    end_client,
    running_client,
    start_client,
)
from mesh_jobs._state.folder import StateFolder
from mesh_jobs._state.record import Record
from mesh_jobs._worker.local_workers import all_workers, end_workers, running_workers, start_worker

__all__: list[str] = []

# How long the logs of workers that exited on their own are kept. The next allocation removes older
# logs.
_OLD_S = 24 * 3600.0
_LAST_LINES = 5
_CLIENT = "client"


def main() -> int:
    """Execute the request and return the exit status."""
    verbs: Mapping[str, Callable[[dict[str, Any]], Any]] = {
        "start": _start,
        "report": _report,
        "client": _client,
        "client-output": _client_output,
        "end": _end,
        "logs": _logs,
    }
    request = json.load(sys.stdin)
    print(json.dumps({"answer": verbs[request["verb"]](request)}))
    return 0


def _folder(allocation_id: str) -> Path:
    home = Path(os.environ.get("MESH_HOME") or Path.home() / ".mesh")
    return home / "hosts" / os.path.basename(allocation_id)


def _start(request: dict[str, Any]) -> None:
    folder = private_folder(_folder(request["allocation_id"]))
    _sweep(folder)
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # The same request may arrive twice: from a program that died, and from the next one.
        fcntl.flock(lock, fcntl.LOCK_EX)
        running = running_workers(request["allocation_id"])
        for worker in request["workers"]:
            if (worker["mesh"], worker["rank"]) in running:
                continue
            report, log = _files(folder, worker["mesh"], worker["rank"])
            report.unlink(missing_ok=True)
            argv = [sys.executable if word == "{python}" else word for word in worker["argv"]]
            argv += ["--report", str(report)]
            start_worker(argv, worker["env"], log, worker["secret"].encode())
    finally:
        os.close(lock)


def _client(request: dict[str, Any]) -> None:
    """Start the client script on this machine, unless it was started.

    The request contains the record of its job.
    """
    folder = _folder(request["allocation_id"])
    state = StateFolder(private_folder(folder / _CLIENT))
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (
            client_status(state.path) is not None
            or running_client(request["allocation_id"]) is not None
        ):
            return
        for part in ("workers", "logs", "keys", "keys/controller"):
            private_folder(state.path / part)
        for name, text in request["keys"].items():
            write_private(
                state.path / "keys" / "controller" / os.path.basename(name), text.encode()
            )
        record = Record.from_json(request["record"], state.path)
        state.write(record)
        allocation = AllocationRequest(record.allocation_id, record.spec, state.path)
        more = ("--grace", "5", "--ends-hosts", "--ends-workers")
        start_client(allocation, request["env"], more, request["context"])
    finally:
        os.close(lock)


def _client_output(request: dict[str, Any]) -> str:
    log = client_log(_folder(request["allocation_id"]) / _CLIENT)
    return base64.b64encode(client_output(log, request["start"])).decode()


def _client_status(allocation_id: str) -> dict[str, Any]:
    # The runner stores the exit status of the script before it exits itself.
    is_running = running_client(allocation_id) is not None
    client = client_status(_folder(allocation_id) / _CLIENT)
    return {"is_running": is_running, "status": None if client is None else client.status}


def _report(request: dict[str, Any]) -> dict[str, Any]:
    folder = _folder(request["allocation_id"])
    running = running_workers(request["allocation_id"])
    found = []
    for mesh, rank in request["places"]:
        pids = running.get((mesh, rank), set())
        report, log = _files(folder, mesh, rank)
        worker_report = read_json(report) or {}
        has_reported = worker_report.get("pid") in pids
        found.append(
            {
                "mesh": mesh,
                "rank": rank,
                "is_running": bool(pids),
                "address": worker_report["address"] if has_reported else None,
                "control": worker_report.get("control") if has_reported else None,
                "last": "" if pids else tail(log, _LAST_LINES),
            }
        )
    return {"hosts": found, "client": _client_status(request["allocation_id"])}


def _end(request: dict[str, Any]) -> None:
    folder = _folder(request["allocation_id"])
    if request["with_client"]:
        end_client(request["allocation_id"])
        shutil.rmtree(folder / _CLIENT, ignore_errors=True)
    places = [(mesh, rank) for mesh, rank in request["places"]]
    end_workers(all_workers(request["allocation_id"], places))
    for place in places:
        for path in _files(folder, *place):
            path.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()
        folder.parent.rmdir()


def _logs(request: dict[str, Any]) -> str:
    _, log = _files(_folder(request["allocation_id"]), request["mesh"], request["rank"])
    return tail(log, request["lines"])


def _files(folder: Path, mesh: str, rank: int) -> tuple[Path, Path]:
    # Hosts may share a home directory, so the file names contain the mesh and the rank.
    return folder / f"{mesh}-{rank}.json", folder / f"{mesh}-{rank}.log"


def _sweep(mine: Path) -> None:
    """Remove the files of orders whose workers exited on their own."""
    for folder in mine.parent.iterdir():
        with suppress(OSError):
            newest = max(path.stat().st_mtime for path in [folder, *folder.iterdir()])
            is_old = folder != mine and time.time() - newest > _OLD_S
            if is_old and not running_workers(folder.name):
                shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
