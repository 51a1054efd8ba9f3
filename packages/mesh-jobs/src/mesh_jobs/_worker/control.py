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
    from mesh_jobs._control.worker_servers import WorkerServers

__all__ = ["ControlOptions", "WorkerControl", "control_service"]

_INSTALL = "pip install 'torchmesh-jobs[control]'"
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
        error: Why no control service runs; empty if one does.
        port: The port of the control service.
        health_port: The port of the plaintext health service; None if it is disabled.
    """

    def __init__(self, servers: WorkerServers | None = None, error: str = "") -> None:
        self._servers = servers
        self.error: str = error
        self.port: int = 0 if servers is None else servers.port
        self.health_port: int | None = None if servers is None else servers.health_port

    def ready(self) -> None:
        """Report that the worker can serve a program."""
        if self._servers is not None:
            self._servers.health.set_serving(True)

    def leaving(self) -> None:
        """Report that the worker accepts no more programs."""
        if self._servers is not None:
            self._servers.health.leave()


@contextmanager
def control_service(
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
        # The import is here because grpcio is an optional dependency.
        from mesh_jobs._control.worker_servers import WorkerServers  # noqa: PLC0415
    except Exception as error:
        # A worker must start even if the optional dependency is missing or broken.
        why = f"it cannot be loaded: {error}: {_INSTALL}"
        if isinstance(error, ModuleNotFoundError):
            why = f"{error.name} is not installed: {_INSTALL}"
        if options.health_port is not None:
            raise ConfigError(f"health cannot be served: {why}") from error
        yield WorkerControl(error=why)
        return
    with _quiet():
        servers = WorkerServers(host, options.at, options.port, options.health_port, keys)
    control = WorkerControl(servers)
    try:
        with watch_termination(control.leaving):
            yield control
    finally:
        control.leaving()
        host.log.close()
        servers.close(_SHUTDOWN_GRACE_S)


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
