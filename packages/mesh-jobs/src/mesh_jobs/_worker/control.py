"""The control service beside a worker, where grpcio is installed."""

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
# So long who watches has to hear how it ends.
_FAREWELL_S = 0.5
_VERBOSITY = "GRPC_VERBOSITY"


@dataclass(frozen=True, slots=True)
class ControlOptions:
    """Where to serve.

    Attributes:
        at: The name or address to listen at, `*` for all.
        port: The port of the control service; 0 lets the system choose.
        health_port: The port of health alone, in plaintext; None serves none.
    """

    at: str
    port: int
    health_port: int | None


class WorkerControl:
    """What a worker says of its control service.

    Attributes:
        why_none: Why there is none; empty when there is one.
        port: Where it listens.
        health_port: Where health alone is served; None when it is not.
    """

    def __init__(self, health: Health | None = None, why_none: str = "") -> None:
        self._health = health
        self.why_none: str = why_none
        self.port: int = 0
        self.health_port: int | None = None

    def ready(self) -> None:
        """The worker can take a program from now on."""
        if self._health is not None:
            self._health.tell(True)

    def leaving(self) -> None:
        """The worker takes no program any more."""
        if self._health is not None:
            self._health.leave()


@contextmanager
def control_beside(
    host: ServedHost, options: ControlOptions, keys: Path | None
) -> Iterator[WorkerControl]:
    """Serves control while a worker runs; nothing where grpcio is not installed.

    Args:
        host: The host.
        options: Where to serve.
        keys: The folder with the worker's credentials; None for those of its user.

    Raises:
        ConfigError: Health is to be served, and cannot be.
        OSError: A port is taken.
    """
    try:
        # Not at the top: it is an extra, and takes a while to import.
        from mesh_jobs._control.health import Health
        from mesh_jobs._control.pem import Pem
        from mesh_jobs._control.server import ControlServer, HealthServer
    except Exception as error:
        # An extra that is missing, or broken in whatever way, is no reason to have no worker.
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
            close(_FAREWELL_S)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps grpc from printing each caller that it refuses; for this process alone."""
    before = os.environ.get(_VERBOSITY)
    os.environ.setdefault(_VERBOSITY, "NONE")
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VERBOSITY]
