"""Drives `mesh_core`, the framework under test."""

from __future__ import annotations

from bench.drivers.actor_program import ActorApi, ActorDriver, async_worker, blocking_worker
from bench.drivers.driver import Driver
from mesh_core import Actor, endpoint, shutdown_context, this_host

BlockingWorker = blocking_worker(Actor, endpoint, __name__)
AsyncWorker = async_worker(Actor, endpoint, __name__)


class MeshDriver(ActorDriver):
    """Also offers what the peer does not have."""

    def mapped(self, n: int) -> None:
        taken = sum(1 for _ in self._mesh.noop.map(range(n), max_in_flight=8))
        assert taken == n


def driver() -> Driver:
    """Return the driver of `mesh_core`."""
    return MeshDriver("mesh", ActorApi(this_host, shutdown_context, BlockingWorker, AsyncWorker))
