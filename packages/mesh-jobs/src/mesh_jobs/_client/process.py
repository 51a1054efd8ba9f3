"""The client of a job: its command, and what became of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mesh_jobs._atomic_files import read_json
from mesh_jobs._backend.order import Order
from mesh_jobs._host.process_table import Process, command_of, processes
from mesh_jobs._worker.local_workers import end_workers, start_worker

__all__ = [
    "CLIENT_MODULE",
    "ClientNews",
    "client_argv",
    "client_log",
    "client_news",
    "client_output",
    "end_client",
    "running_client",
    "start_client",
]

CLIENT_MODULE = "mesh_jobs._client.runner"
_NEWS = "client.json"
_LOG = "client.log"
_OUTPUT_LEN_MAX = 1 << 20


@dataclass(frozen=True)
class ClientNews:
    """What is known of a client that has begun.

    Attributes:
        epoch: How often the job was put into the queue again before.
        status: Its exit status as a shell says it; None while it runs.
    """

    epoch: int
    status: int | None


def client_argv(
    order: Order,
    *,
    python: str | None = None,
    epoch: str = "0",
    log: str | None = None,
    context: str | None = None,
    more: Sequence[str] = (),
) -> list[str]:
    """Gives the command that runs the client script of an order, beside its workers.

    Args:
        order: The order.
        python: The Python there; the one of this program when left out.
        epoch: How often the job was queued again; `env:NAME` reads it there.
        log: Where its output goes; in the job's folder when left out.
        context: Under what name the script asks for its job; that of the folder when left out.
        more: More options, see `python -m mesh_jobs._client.runner --help`.
    """
    client = order.spec.client
    assert client is not None, "who has no client starts none"
    folder = str(order.folder.absolute())
    words = [python or sys.executable, "-m", CLIENT_MODULE, "--order", order.id]
    words += ["--folder", folder, "--context", context or order.folder.name, "--epoch", epoch]
    words += ["--log", log or str(client_log(folder)), "--workdir", client.workdir, *more]
    return [*words, "--", *client.argv]


def client_log(folder: str | os.PathLike[str]) -> Path:
    """Gives where the output of a job's client is."""
    return Path(folder, "logs", _LOG)


def client_news(folder: str | os.PathLike[str]) -> ClientNews | None:
    """Reads what is known of the client of a job; None when it has not begun.

    Raises:
        OSError: It cannot be read.
    """
    told = read_json(Path(folder, "workers", _NEWS))
    return None if told is None else ClientNews(told["epoch"], told["status"])


def client_output(log: Path, start: int) -> bytes:
    """Reads what a client has printed, from a byte on, some of it; from the end when negative.

    Raises:
        OSError: It is there and cannot be read.
    """
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size + start, 0) if start < 0 else start)
            return file.read(_OUTPUT_LEN_MAX)
    except FileNotFoundError:
        return b""


def start_client(
    order: Order, env: Mapping[str, str], more: Sequence[str], context: str | None = None
) -> None:
    """Starts the client of an order as a process of this machine, unless that was done.

    Raises:
        OSError: It cannot be started.
    """
    folder = order.folder.absolute()
    # One that has ended, or was killed, is not begun again.
    if client_news(folder) is None and running_client(order.id) is None:
        argv = client_argv(order, context=context, more=more)
        start_worker(argv, env, folder / "logs" / "client-runner.log")


def running_client(order_id: str) -> Process | None:
    """Finds the process of this machine that looks after the client of an order."""
    for process in processes():
        words = command_of(process.pid)
        if CLIENT_MODULE in words and order_id in words and process.session == process.pid:
            return process
    return None


def end_client(order_id: str) -> None:
    """Ends the client of an order, with all that it has started on this machine."""
    found = running_client(order_id)
    if found is not None:
        end_workers([found])
