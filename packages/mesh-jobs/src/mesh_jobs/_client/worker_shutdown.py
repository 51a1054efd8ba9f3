"""Ending the workers of all hosts of a job from inside, where no scheduler does it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import mesh_core
from mesh_core import Actor, Credentials, MeshError, MeshFailure, attach_to_workers, endpoint
from mesh_jobs._atomic_files import read_json
from mesh_jobs._worker.local_workers import all_workers

__all__ = ["terminate_workers"]

_LIMIT_S = 20.0


class WorkerTerminator(Actor):
    """Tells the worker that it came by to end."""

    @endpoint
    def end(self, order_id: str) -> None:
        """Tells the workers of an order on this machine, which end us as well."""
        for worker in all_workers(order_id):
            os.kill(worker.pid, signal.SIGTERM)


def terminate_workers(folder: Path, order_id: str) -> None:
    """Ends the workers of the job whose state is in a folder; those that cannot be reached stay.

    They end when their lease does.
    """
    ticket = read_json(folder / "job.json")["ticket"]
    addresses = [address for *_, address in ticket["hosts"]]
    # They are lost because they end; nothing is to become of that here.
    mesh_core.unhandled_fault_hook = _expected
    hosts = attach_to_workers(addresses, credentials=Credentials.load(folder / "keys/controller"))
    with suppress(MeshError, TimeoutError):
        hosts.spawn_procs().spawn("terminators", WorkerTerminator).end.call(order_id).get(
            timeout=_LIMIT_S
        )


def _expected(failure: MeshFailure) -> None:
    """Hears of the end of what was ended."""
