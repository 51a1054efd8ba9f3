"""Workers that are processes of this machine, found by their command lines whoever started them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from mesh_jobs._host.process_table import Process, command_of, end_all, processes
from mesh_jobs._worker.credentials import sweep

__all__ = ["all_workers", "end_workers", "running_workers", "start_worker"]

_END_S = 10.0


def running_workers(order_id: str) -> dict[tuple[str, int], set[int]]:
    """Finds the workers of an order that run here: their pids, by mesh and rank.

    A place may have two: a program that is killed while it starts one leaves it behind, and the
    next program may look before that one can be told from the program itself. The one that has
    reported last is the host.
    """
    running: dict[tuple[str, int], set[int]] = {}
    for place, process in _found(order_id):
        running.setdefault(place, set()).add(process.pid)
    return running


def all_workers(order_id: str, places: Collection[tuple[str, int]] | None = None) -> list[Process]:
    """Finds the workers of an order that run here, or of some places of it: all are to be ended."""
    found = _found(order_id)
    return [process for place, process in found if places is None or place in places]


def _found(order_id: str) -> Iterator[tuple[tuple[str, int], Process]]:
    for process in processes():
        words = command_of(process.pid)
        # The leader of its session alone: what it forks has the same command line for a moment.
        if "mesh_jobs.worker" in words and order_id in words and process.session == process.pid:
            told = dict(pairwise(words))
            yield (told["--mesh"], int(told["--rank"])), process


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
    # Those that were killed have left their keys.
    sweep()
