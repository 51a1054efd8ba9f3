"""The control service of a worker, if grpcio is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mesh_core import ConfigError
from mesh_jobs._host.host import ServedHost
from mesh_jobs._worker.termination_watch import watch_termination

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_jobs._control.health import Health

__all__ = ["ControlOptions", "WorkerControl", "control_beside"]

_INSTALL = "pip install 'mesh-jobs[control]'"
# Grace period for open streams at shutdown.
_SHUTDOWN_GRACE_S = 0.5
_VERBOSITY = "GRPC_VERBOSITY"


@dataclass(frozen=True, slots=True)
class ControlOptions:
    """The listen addresses of the control service.

    Attributes:
        at: The name or address to listen on; `*` for all interfaces.
        port: The port of the control service; 0 lets the system choose.
        health_port: The port of the plaintext health service; None disables it.
    """

    at: str
    port: int
    health_port: int | None


class WorkerControl:
    """The state of the control service, as the worker reports it.

    Attributes:
        why_none: Why no control service runs; empty if one does.
        port: The port of the control service.
        health_port: The port of the plaintext health service; None if it is disabled.
    """

    def __init__(self, health: Health | None = None, why_none: str = "") -> None:
        self._health = health
        self.why_none: str = why_none
        self.port: int = 0
        self.health_port: int | None = None

    def ready(self) -> None:
        """Report that the worker can serve a program."""
        if self._health is not None:
            self._health.tell(True)

    def leaving(self) -> None:
        """Report that the worker accepts no more programs."""
        if self._health is not None:
            self._health.leave()


@contextmanager
def control_beside(
    host: ServedHost, options: ControlOptions, keys: Path | None
) -> Iterator[WorkerControl]:
    """Run the control service of a worker inside the context, if grpcio is installed.

    Args:
        host: The host.
        options: The listen addresses.
        keys: The folder with the worker's credentials. None uses the local credentials of its user.

    Raises:
        ConfigError: A health port was given, and the health service cannot run.
        OSError: A port is in use.
    """
    try:
        # The imports are here because grpcio is an optional dependency that is slow to import.
        from mesh_jobs._control.health import Health
        from mesh_jobs._control.pem import Pem
        from mesh_jobs._control.server import ControlServer, HealthServer
    except Exception as error:
        # A worker must start even if the optional dependency is missing or broken.
        why = f"it cannot be loaded: {error}: {_INSTALL}"
        if isinstance(error, ModuleNotFoundError):
            why = f"{error.name} is not installed: {_INSTALL}"
        if options.health_port is not None:
            raise ConfigError(f"health cannot be served: {why}") from error
        yield WorkerControl(why_none=why)
        return
    health = Health()
    told = WorkerControl(health)
    with _quiet():
        pem = Pem.local("worker") if keys is None else Pem.load(keys)
        server = ControlServer(host, health, options.at, options.port, pem)
        told.port = server.port
        closing = [server.close]
        if options.health_port is not None:
            probes = HealthServer(health, options.at, options.health_port)
            told.health_port = probes.port
            closing.append(probes.close)
    try:
        with watch_termination(told.leaving):
            yield told
    finally:
        told.leaving()
        host.log.close()
        for close in closing:
            close(_SHUTDOWN_GRACE_S)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log messages of grpc for rejected connections, in this process only."""
    before = os.environ.get(_VERBOSITY)
    os.environ.setdefault(_VERBOSITY, "NONE")
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VERBOSITY]
