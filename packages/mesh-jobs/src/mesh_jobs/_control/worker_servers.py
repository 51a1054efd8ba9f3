"""The gRPC servers that one worker runs, and the health that they report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mesh_jobs._control.health import Health
from mesh_jobs._control.pem_credentials import PemCredentials
from mesh_jobs._control.server import ControlServer, HealthServer
from mesh_jobs._host.host import ServedHost

__all__ = ["WorkerServers"]


class WorkerServers:
    """The control service of a worker, and its plaintext health service if it has a port.

    Args:
        host: The host.
        at: The name or address to listen on; `*` for all interfaces.
        port: The port of the control service; 0 lets the system choose.
        health_port: The port of the plaintext health service; None disables it.
        keys: The folder with the worker's credentials. None uses the local credentials of its user.

    Attributes:
        health: The health of the worker.
        port: The port of the control service.
        health_port: The port of the plaintext health service; None if it is disabled.

    Raises:
        CredentialsError: The credentials are missing, or other users can read them.
        OSError: A port is in use, or the address does not belong to this machine.
    """

    def __init__(
        self, host: ServedHost, at: str, port: int, health_port: int | None, keys: Path | None
    ) -> None:
        self.health = Health()
        pem = PemCredentials.local("worker") if keys is None else PemCredentials.load(keys)
        control = ControlServer(host, self.health, at, port, pem)
        self.port: int = control.port
        self.health_port: int | None = None
        self._close: list[Callable[[float], None]] = [control.close]
        if health_port is not None:
            probes = HealthServer(self.health, at, health_port)
            self.health_port = probes.port
            self._close.append(probes.close)

    def close(self, grace_s: float) -> None:
        """Stop the servers; open streams have a grace period in seconds."""
        for close in self._close:
            close(grace_s)
