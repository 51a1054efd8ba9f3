"""Drives the peer, `torchmonarch` 0.7.0, through the same program as Mesh."""

from __future__ import annotations

import os
import sys
from typing import Any

import monarch.actor  # type: ignore[import-not-found]
from monarch.actor import (
    Actor,
    attach_to_workers,
    enable_transport,
    endpoint,
    run_worker_loop_forever,
    shutdown_context,
    this_host,
)

from bench.drivers.actor_program import ActorApi, ActorDriver, async_worker, blocking_worker
from bench.drivers.driver import Driver, TwoHosts

_PORT = 26600
#: The only value that the peer accepts.
_TRUST = "trust_all_connections"
_POLL = "HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY"

BlockingWorker = blocking_worker(Actor, endpoint, __name__)
AsyncWorker = async_worker(Actor, endpoint, __name__)

# The default hook ends the client on any failure, even one that a caller has received.
monarch.actor.unhandled_fault_hook = lambda failure: None


class _MonarchDriver(ActorDriver):
    # After the first kill in a mesh, a call to the second killed worker was observed to wait for
    # over a minute.
    kills_per_mesh = 1
    kill_pause_s_max = float(os.environ.get(_POLL, "10s").removesuffix("s"))

    def serve(self, hosts: TwoHosts) -> None:
        run_worker_loop_forever(ca=_TRUST, address=f"tcp://{hosts.worker}:{_PORT}")

    def _attached(self, hosts: TwoHosts) -> Any:
        enable_transport(f"tcp://{hosts.program}:{_PORT}")
        return attach_to_workers(ca=_TRUST, workers=[f"tcp://{hosts.worker}:{_PORT}"])

    # Stopping a mesh with dead processes takes the peer up to a minute, so it is not stopped.
    def stop_after_kills(self) -> None:
        pass

    def close_after_kills(self) -> None:
        sys.stdout.flush()
        os._exit(0)


def driver() -> Driver:
    """Return the driver of the peer."""
    api = ActorApi(this_host, shutdown_context, BlockingWorker, AsyncWorker)
    return _MonarchDriver("monarch", api)
