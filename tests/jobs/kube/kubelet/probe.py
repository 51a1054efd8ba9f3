"""Readiness and liveness probes of containers."""

from __future__ import annotations

import http.client
import socket
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from tests.jobs.kube.api.kind import Object


class Probe:
    """A probe of one container, such as its `readinessProbe`, run at its period."""

    def __init__(self, container: Object, kind: str) -> None:
        self._probe: Object | None = container.get(kind)
        self._ports = {one.get("name"): one["containerPort"] for one in container.get("ports", [])}
        self._is_ready = False
        self._failures = 0
        self._next = 0.0

    def begin(self) -> None:
        """Reset the probe when the container has started."""
        delay = (self._probe or {}).get("initialDelaySeconds", 0)
        self._next = time.monotonic() + delay
        self._is_ready, self._failures = self._probe is None, 0

    @property
    def has_failed(self) -> bool:
        """Whether the number of consecutive failures has reached the threshold."""
        return self._probe is not None and self._failures >= self._probe.get("failureThreshold", 3)

    def ask(self, address: str, environment: Mapping[str, str]) -> bool:
        """Run the probe if it is due, and return whether the container is ready."""
        if self._probe is None or time.monotonic() < self._next:
            return self._is_ready
        self._next = time.monotonic() + self._probe.get("periodSeconds", 10)
        timeout = float(self._probe.get("timeoutSeconds", 1))
        try:
            well = self._try(address, environment, timeout)
        except (OSError, subprocess.SubprocessError, http.client.HTTPException):
            well = False
        self._failures = 0 if well else self._failures + 1
        if well:
            self._is_ready = True
        elif self.has_failed:
            self._is_ready = False
        return self._is_ready

    def _try(self, address: str, environment: Mapping[str, str], timeout: float) -> bool:
        assert self._probe is not None
        match self._probe:
            case {"exec": action}:
                ended = subprocess.run(
                    action["command"], env=dict(environment), timeout=timeout, capture_output=True
                )
                return ended.returncode == 0
            case {"tcpSocket": action}:
                socket.create_connection((address, self._port(action)), timeout).close()
                return True
            case {"httpGet": action}:
                connection = http.client.HTTPConnection(address, self._port(action), timeout)
                connection.request("GET", action.get("path", "/"))
                return connection.getresponse().status < 400
            case {"grpc": action}:
                target = f"{address}:{self._port(action)}"
                return _is_serving(target, action.get("service", ""), timeout)
        return False

    def _port(self, action: Object) -> int:
        port: Any = action["port"]
        return int(self._ports.get(port) or port)


def _is_serving(target: str, service: str, timeout: float) -> bool:
    """Query the gRPC health service; its messages are short enough to encode by hand."""
    try:
        import grpc  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise OSError("a gRPC probe needs grpcio: install it") from error
    name = service.encode()
    asked = b"\x0a" + bytes([len(name)]) + name if name else b""
    channel: Any = grpc.insecure_channel(target)
    try:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=lambda message: message,
            response_deserializer=lambda message: message,
        )
        return bool(check(asked, timeout=timeout) == b"\x08\x01")
    except grpc.RpcError:
        return False
    finally:
        channel.close()
