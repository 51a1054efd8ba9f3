"""The process of the client script of a job: its command, its status and its output."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mesh_jobs._atomic_files import read_json
from mesh_jobs._backend.allocation_request import AllocationRequest
from mesh_jobs._host.process_table import Process, command_of, processes
from mesh_jobs._worker.local_workers import end_workers, start_worker

__all__ = [
    "CLIENT_MODULE",
    "ClientStatus",
    "client_argv",
    "client_log",
    "client_output",
    "client_status",
    "end_client",
    "running_client",
    "start_client",
]

CLIENT_MODULE = "mesh_jobs._client.runner"
_STATUS_FILE = "client.json"
_LOG = "client.log"
_OUTPUT_LEN_MAX = 1 << 20


@dataclass(frozen=True)
class ClientStatus:
    """The status of a client script that was started.

    Attributes:
        epoch: How often the scheduler had requeued the job when the script was started.
        status: The exit status, with 128 + N for signal N; None while the script runs.
    """

    epoch: int
    status: int | None


def client_argv(
    request: AllocationRequest,
    *,
    python: str | None = None,
    epoch: str = "0",
    log: str | None = None,
    context: str | None = None,
    more: Sequence[str] = (),
) -> list[str]:
    """Return the command that runs the client script of a job next to its workers.

    Args:
        request: The allocation request.
        python: The Python interpreter on the target machine. Defaults to this program's.
        epoch: How often the scheduler has requeued the job; `env:NAME` reads a variable there.
        log: The file for the output. Defaults to a file in the folder of the job.
        context: The context under which the script finds its job. Defaults to the folder's name.
        more: More options; see `python -m mesh_jobs._client.runner --help`.
    """
    client = request.spec.client
    assert client is not None, "only a job with a client script starts one"
    folder = str(request.folder.absolute())
    words = [python or sys.executable, "-m", CLIENT_MODULE, "--allocation-id", request.id]
    words += ["--folder", folder, "--context", context or request.folder.name, "--epoch", epoch]
    words += ["--log", log or str(client_log(folder)), "--workdir", client.workdir, *more]
    return [*words, "--", *client.argv]


def client_log(folder: str | os.PathLike[str]) -> Path:
    """Return the path of the output of a client script."""
    return Path(folder, "logs", _LOG)


def client_status(folder: str | os.PathLike[str]) -> ClientStatus | None:
    """Read the status of a client script; None if it was not started.

    Raises:
        OSError: The status cannot be read.
    """
    stored = read_json(Path(folder, "workers", _STATUS_FILE))
    return None if stored is None else ClientStatus(stored["epoch"], stored["status"])


def client_output(log: Path, start: int) -> bytes:
    """Read part of the output of a client script, from an offset on.

    Args:
        log: The log file; if it does not exist, the output is empty.
        start: The offset of the first byte; a negative one counts from the end.

    Raises:
        OSError: The log cannot be read.
    """
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size + start, 0) if start < 0 else start)
            return file.read(_OUTPUT_LEN_MAX)
    except FileNotFoundError:
        return b""


def start_client(
    request: AllocationRequest,
    env: Mapping[str, str],
    more: Sequence[str],
    context: str | None = None,
) -> None:
    """Start the client script of a job on this machine, unless it was started before.

    Raises:
        OSError: The process cannot be started.
    """
    folder = request.folder.absolute()
    # A client script that has exited or was killed is not restarted.
    if client_status(folder) is None and running_client(request.id) is None:
        argv = client_argv(request, context=context, more=more)
        start_worker(argv, env, folder / "logs" / "client-runner.log")


def running_client(allocation_id: str) -> Process | None:
    """Return the process on this machine that runs the client script of an allocation, if any."""
    for process in processes():
        words = command_of(process.pid)
        if CLIENT_MODULE in words and allocation_id in words and process.session == process.pid:
            return process
    return None


def end_client(allocation_id: str) -> None:
    """Terminate the client script of an allocation, with all its descendants on this machine."""
    found = running_client(allocation_id)
    if found is not None:
        end_workers([found])
