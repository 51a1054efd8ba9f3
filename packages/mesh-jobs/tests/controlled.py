"""A job whose hosts are looked into, for tests of that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workers import END_LIMIT_S

from mesh_core import HostMesh
from mesh_jobs import ProcessJob
from mesh_jobs._control.client import ControlClient
from mesh_jobs._control.host_clients import as_dict
from mesh_jobs._control.pem import Pem


class Applied:
    """A job of one host, and who may call it."""

    def __init__(self, folder: Path) -> None:
        self.job = ProcessJob({"ones": 1}, folder=folder, ttl_s=120)
        self.hosts: HostMesh = self.job.state(timeout=END_LIMIT_S).ones
        self.report = self.job.status().hosts[0]
        assert self.report.control is not None
        self.control: str = self.report.control
        self.pem = Pem.load(Path(self.job.folder, "keys", "controller"))

    @property
    def target(self) -> str:
        """Its control port, as gRPC wants it."""
        return self.control.partition("://")[2]

    def client(self) -> ControlClient:
        """Connects as the job's controller."""
        return ControlClient(self.control, self.pem)


@contextmanager
def applied_job(folder: Path) -> Iterator[Applied]:
    """Applies a job of one host, and gives it back."""
    one = Applied(folder)
    try:
        yield one
    finally:
        one.job.detach()
        one.job.kill()


def processes(client: ControlClient, kind: str) -> list[dict[str, Any]]:
    """Lists the processes of one kind."""
    told = as_dict(client.list_processes())["processes"]
    return [one for one in told if one["kind"] == kind]
