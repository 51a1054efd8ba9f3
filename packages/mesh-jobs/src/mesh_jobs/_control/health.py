"""The standard health service: whether a worker can be used."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from mesh_jobs._control.messages import SERVICE

__all__ = ["HEALTH", "Health"]

HEALTH = "grpc.health.v1.Health"
_NAMES = ("", SERVICE)


class Health:
    """Says that the worker can take a program or serves one, or that it cannot."""

    def __init__(self) -> None:
        # Who watches holds no thread of the server's: those are for calls.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="mesh-health")
        self._servicer: Any = health.HealthServicer(
            experimental_non_blocking=True, experimental_thread_pool=self._pool
        )
        self.tell(False)

    def add_to(self, server: Any) -> None:
        """Has a server answer questions about it."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    def tell(self, is_serving: bool) -> None:
        """Says how it is from now on; those who watch hear of it."""
        state: Any = health_pb2.HealthCheckResponse
        for name in _NAMES:
            self._servicer.set(name, state.SERVING if is_serving else state.NOT_SERVING)

    def leave(self) -> None:
        """Says that the worker is about to end; nothing changes that."""
        self._servicer.enter_graceful_shutdown()
