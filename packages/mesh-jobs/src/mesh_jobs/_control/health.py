"""The standard gRPC health service, which reports whether a worker is usable."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from mesh_jobs._control.messages import SERVICE

__all__ = ["HEALTH", "Health"]

HEALTH = "grpc.health.v1.Health"
_NAMES = ("", SERVICE)


class Health:
    """The health of a worker: serving while it can accept a program or serves one."""

    def __init__(self) -> None:
        # Watches must not occupy the threads of the server, which are reserved for calls.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="mesh-health")
        self._servicer: Any = health.HealthServicer(
            experimental_non_blocking=True, experimental_thread_pool=self._pool
        )
        self.set_serving(False)

    def add_to(self, server: Any) -> None:
        """Add the health service to a server."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    def set_serving(self, is_serving: bool) -> None:
        """Set the health status and notify all watches."""
        state: Any = health_pb2.HealthCheckResponse
        for name in _NAMES:
            self._servicer.set(name, state.SERVING if is_serving else state.NOT_SERVING)

    def leave(self) -> None:
        """Report permanently that the worker is shutting down."""
        self._servicer.enter_graceful_shutdown()
