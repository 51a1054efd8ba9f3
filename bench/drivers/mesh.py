"""Drives `mesh_core`, the framework under test."""

from __future__ import annotations

from bench.drivers.actor_program import ActorApi, ActorDriver, async_worker, blocking_worker
from bench.drivers.driver import Driver
from mesh_core import Actor, endpoint, shutdown_context, this_host

BlockingWorker = blocking_worker(Actor, endpoint, __name__)
AsyncWorker = async_worker(Actor, endpoint, __name__)


def driver() -> Driver:
    """Return the driver of `mesh_core`."""
    api = ActorApi(this_host, shutdown_context, BlockingWorker, AsyncWorker)
    return ActorDriver("mesh", api)
