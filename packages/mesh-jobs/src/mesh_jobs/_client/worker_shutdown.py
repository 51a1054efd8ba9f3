"""Shutdown of all workers of a job from inside the job, for backends without a scheduler."""

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
    """An actor that terminates the workers on its host."""

    @endpoint
    def end(self, allocation_id: str) -> None:
        """Send SIGTERM to an allocation's workers on this host, which also end this process."""
        for worker in all_workers(allocation_id):
            os.kill(worker.pid, signal.SIGTERM)


def terminate_workers(folder: Path, allocation_id: str) -> None:
    """Terminate the workers of a job.

    Workers that cannot be reached end when their lease expires.

    Args:
        folder: The state folder of the job.
        allocation_id: The id of the allocation.
    """
    allocation = read_json(folder / "job.json")["allocation"]
    addresses = [address for *_, address in allocation["hosts"]]
    # The hosts are lost on purpose, so the failures need no handling.
    mesh_core.unhandled_fault_hook = _expected
    hosts = attach_to_workers(addresses, credentials=Credentials.load(folder / "keys/controller"))
    with suppress(MeshError, TimeoutError):
        hosts.spawn_procs().spawn("terminators", WorkerTerminator).end.call(allocation_id).get(
            timeout=_LIMIT_S
        )


def _expected(failure: MeshFailure) -> None:
    """Ignore the loss of a host that was terminated."""
