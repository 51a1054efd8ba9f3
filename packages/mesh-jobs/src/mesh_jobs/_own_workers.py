"""Workers that are processes of this machine, found by their command lines whoever started them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from mesh_jobs._processes import Process, command_of, end_all, processes

__all__ = ["end_workers", "running_workers", "start_worker"]

_END_S = 10.0


def running_workers(order_id: str) -> dict[tuple[str, int], Process]:
    """Finds the workers of an order that run here, by mesh and rank."""
    found = {}
    for process in processes():
        words = command_of(process.pid)
        # The leader of its session alone: what it forks has the same command line for a moment.
        if "mesh_jobs.worker" in words and order_id in words and process.session == process.pid:
            told = dict(pairwise(words))
            found[told["--mesh"], int(told["--rank"])] = process
    return found


def start_worker(
    argv: Sequence[str], env: Mapping[str, str], log: Path, secret: bytes | None = None
) -> None:
    """Starts a worker that outlives this program.

    Args:
        argv: Its command.
        env: What to add to its environment.
        log: The file that its output is added to.
        secret: What to give it on its standard input.

    Raises:
        OSError: It cannot be started.
    """
    number = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        # A session of its own: Ctrl-C in the program's terminal is not meant for it.
        worker = subprocess.Popen(
            argv,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL if secret is None else subprocess.PIPE,
            stdout=number,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    finally:
        os.close(number)
    if secret is not None:
        assert worker.stdin is not None
        with worker.stdin as stdin:
            stdin.write(secret)
    # It is not waited for: whoever asks next looks for it among all processes.
    worker.returncode = 0


def end_workers(chosen: Sequence[Process]) -> None:
    """Ends workers with all that they run; returns when nothing of it is left."""
    end_all(chosen, _END_S)
