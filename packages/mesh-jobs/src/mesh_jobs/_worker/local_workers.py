"""Functions that start, find and terminate workers on this machine."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from mesh_jobs._host.process_table import Process, command_of, end_all, processes
from mesh_jobs._worker.credentials import sweep

__all__ = ["all_workers", "end_workers", "running_workers", "start_worker"]

_END_S = 10.0
_LOAD_PAUSE_S = 0.001


def running_workers(allocation_id: str) -> dict[tuple[str, int], set[int]]:
    """Return the pids of the running workers of an allocation, by mesh and rank.

    A rank may have two workers: a program that is killed while it starts a worker leaves it behind,
    and between fork and exec the next program cannot recognize it. The worker that reported last is
    the host.
    """
    running: dict[tuple[str, int], set[int]] = {}
    for place, process in _found(allocation_id):
        running.setdefault(place, set()).add(process.pid)
    return running


def all_workers(
    allocation_id: str, places: Collection[tuple[str, int]] | None = None
) -> list[Process]:
    """Return the workers of an allocation, or of some of its ranks, as processes to terminate."""
    found = _found(allocation_id)
    return [process for place, process in found if places is None or place in places]


def _found(allocation_id: str) -> Iterator[tuple[tuple[str, int], Process]]:
    for process in processes():
        words = command_of(process.pid)
        # Only session leaders: a child has the same command line between fork and exec.
        if (
            "mesh_jobs.worker" in words
            and allocation_id in words
            and process.session == process.pid
        ):
            options = dict(pairwise(words))
            yield (options["--mesh"], int(options["--rank"])), process


def start_worker(
    argv: Sequence[str], env: Mapping[str, str], log: Path, secret: bytes | None = None
) -> None:
    """Start a worker that outlives this program.

    Args:
        argv: The command.
        env: Variables to add to the environment.
        log: The file that the output is appended to.
        secret: The content of the standard input.

    Raises:
        OSError: The process cannot be started.
    """
    number = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        # In a new session, the worker does not receive Ctrl-C from the program's terminal.
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
    # The kernel may still load the program. Until then, the process has no command line, and would
    # be taken for a worker that has exited.
    while not command_of(worker.pid) and worker.poll() is None:
        time.sleep(_LOAD_PAUSE_S)
    # The worker is not waited for; it is found in the process table.
    worker.returncode = 0


def end_workers(chosen: Sequence[Process]) -> None:
    """Terminate workers with all their descendants; return when all have exited."""
    end_all(chosen, _END_S)
    # Killed workers do not remove their credentials.
    sweep()
