"""Drives `mesh_core`, the framework under test."""

from __future__ import annotations

import os
import sys
from typing import Any

from bench.drivers.actor_program import ActorApi, ActorDriver, async_worker, blocking_worker
from bench.drivers.driver import Driver, TwoHosts
from mesh_core import (
    Actor,
    Credentials,
    attach_to_workers,
    endpoint,
    shutdown_context,
    this_host,
)

_PORT = 26600

BlockingWorker = blocking_worker(Actor, endpoint, __name__)
AsyncWorker = async_worker(Actor, endpoint, __name__)


class MeshDriver(ActorDriver):
    """Also supports operations that the peer does not have."""

    def serve(self, hosts: TwoHosts) -> None:
        credentials = hosts.awaited("worker")
        options = ["--listen", f"tcp://*:{_PORT}", "--credentials", str(credentials)]
        os.execv(sys.executable, [sys.executable, "-m", "mesh_core.worker", *options])

    def _attached(self, hosts: TwoHosts) -> Any:
        credentials = Credentials.create()
        unfinished = hosts.folder / "unfinished"
        credentials.issue(role="worker", name=hosts.worker).save(unfinished)
        unfinished.rename(hosts.folder / "worker")
        return attach_to_workers([f"tcp://{hosts.worker}:{_PORT}"], credentials=credentials)

    def mapped(self, n: int) -> None:
        taken = sum(1 for _ in self._mesh.noop.map(range(n), max_in_flight=8))
        assert taken == n


def driver() -> Driver:
    """Return the driver of `mesh_core`."""
    return MeshDriver("mesh", ActorApi(this_host, shutdown_context, BlockingWorker, AsyncWorker))
