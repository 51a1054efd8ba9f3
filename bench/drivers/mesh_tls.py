"""Drives `mesh_core` with workers behind TCP and mutual TLS on the loopback interface."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.drivers.actor_program import ActorApi, ActorDriver
from bench.drivers.driver import Driver
from bench.drivers.mesh import AsyncWorker, BlockingWorker
from mesh_core import Credentials, HostMesh, attach_to_workers, shutdown_context


class TlsDriver(ActorDriver):
    """Like the driver for one host, but the processes belong to a worker."""

    def __init__(self) -> None:
        api = ActorApi(self._host, shutdown_context, BlockingWorker, AsyncWorker)
        super().__init__("mesh_tls", api)
        self._worker: subprocess.Popen[str] | None = None
        self._folder = TemporaryDirectory()
        self._hosts: HostMesh | None = None

    def _host(self) -> Any:
        if self._hosts is None:
            credentials = Credentials.create()
            folder = Path(self._folder.name, "worker")
            credentials.issue(role="worker", name="worker").save(folder)
            words = ["--listen", "tcp://127.0.0.1:0", "--credentials", str(folder)]
            command = [sys.executable, "-m", "mesh_core.worker", *words]
            self._worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert self._worker.stdout is not None
            address = self._worker.stdout.readline().split()[-1]
            self._hosts = attach_to_workers([address], credentials=credentials)
        return self._hosts

    def close(self) -> None:
        super().close()
        if self._worker is not None:
            self._worker.terminate()
            self._worker.communicate()
        self._folder.cleanup()


def driver() -> Driver:
    """Return the driver of `mesh_core` over TCP and TLS."""
    return TlsDriver()
