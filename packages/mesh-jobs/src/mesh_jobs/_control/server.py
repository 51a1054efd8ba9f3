"""The gRPC servers of a worker: the control service, and an unauthenticated health service."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection

from mesh_jobs._control.authorization import ControllerInterceptor
from mesh_jobs._control.health import HEALTH, Health
from mesh_jobs._control.messages import SERVICE
from mesh_jobs._control.pem_credentials import PemCredentials
from mesh_jobs._control.service import ControlService
from mesh_jobs._host.host import ServedHost

__all__ = ["ControlServer", "HealthServer"]

# Each call occupies a thread while it lasts. The limits on relays and log followers leave threads
# for other calls.
_THREADS = 96
_CALLS_MAX = 128
_PROBES_MAX = 32
_MESSAGE_LEN_MAX = 64 << 10
# The deadline for the TLS handshake.
_HANDSHAKE_MS = 10_000
_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
    # Keepalives detect lost clients; clients may send them as well.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.max_receive_message_length", _MESSAGE_LEN_MAX),
    ("grpc.max_concurrent_streams", _CALLS_MAX),
)


class ControlServer:
    """Server for control, health and reflection, which accepts the controllers of a job.

    Args:
        host: The host.
        health: The health of the worker.
        at: The name or address to listen on; `*` for all interfaces.
        port: The port; 0 lets the system choose.
        pem: The worker's credentials.

    Raises:
        OSError: The port is in use, or the address does not belong to this machine.
    """

    def __init__(
        self, host: ServedHost, health: Health, at: str, port: int, pem: PemCredentials
    ) -> None:
        self._service = ControlService(host)
        self._server: Any = grpc.server(
            ThreadPoolExecutor(_THREADS, thread_name_prefix="mesh-control"),
            interceptors=[ControllerInterceptor(pem.job)],
            options=_OPTIONS,
            maximum_concurrent_rpcs=_CALLS_MAX,
        )
        self._service.add_to(self._server)
        health.add_to(self._server)
        names = (SERVICE, HEALTH, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        self.port: int = _bind(self._server, at, port, pem)
        self._server.start()

    def close(self, grace_s: float) -> None:
        """Shut down the server; calls in progress receive their final status first."""
        self._service.close()
        self._server.stop(grace_s).wait()


class HealthServer:
    """Server for health only, in plaintext because Kubernetes probes have no certificates.

    Args:
        health: The health of the worker.
        at: The name or address to listen on; `*` for all interfaces.
        port: The port; 0 lets the system choose.

    Raises:
        OSError: The port is in use, or the address does not belong to this machine.
    """

    def __init__(self, health: Health, at: str, port: int) -> None:
        self._server: Any = grpc.server(
            ThreadPoolExecutor(2, thread_name_prefix="mesh-probes"),
            options=_OPTIONS,
            maximum_concurrent_rpcs=_PROBES_MAX,
        )
        health.add_to(self._server)
        self.port: int = _bind(self._server, at, port, None)
        self._server.start()

    def close(self, grace_s: float) -> None:
        """Shut down the server."""
        self._server.stop(grace_s).wait()


def _bind(server: Any, at: str, port: int, pem: PemCredentials | None) -> int:
    name = "[::]" if at == "*" else at
    where = f"{name}:{port}"
    try:
        if pem is None:
            return int(server.add_insecure_port(where))
        proof = grpc.ssl_server_credentials(
            [(pem.key, pem.chain)], pem.authorities, require_client_auth=True
        )
        return int(server.add_secure_port(where, proof))
    except RuntimeError as error:
        raise OSError(f"cannot listen at {where} for gRPC: {error}") from error
