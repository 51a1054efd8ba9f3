"""Queries of the health service of a worker."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

__all__ = ["SERVING", "health_reported", "plaintext_health"]

SERVING = "SERVING"


def health_reported(channel: grpc.Channel, timeout_s: float) -> str:
    """Return the name of the status that a worker reports.

    Raises:
        grpc.RpcError: The service does not respond.
    """
    request: Any = health_pb2.HealthCheckRequest()
    stub: Any = health_pb2_grpc.HealthStub(channel)
    reply = stub.Check(request, timeout=timeout_s)
    name: str = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
    return name


def plaintext_health(host: str, port: int, timeout_s: float) -> str:
    """Return the status on the health port of a worker, or the reason why there is none.

    Args:
        host: The name or address of the machine.
        port: The health port.
        timeout_s: The time limit in seconds.
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    # A proxy for HTTP must not reply for a worker.
    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            return health_reported(channel, timeout_s)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
