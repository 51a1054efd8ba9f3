"""A job whose control service is called by tests."""

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
from mesh_jobs._control.pem_credentials import PemCredentials


class Applied:
    """A job of one host, with the credentials of its controller."""

    def __init__(self, folder: Path) -> None:
        self.job = ProcessJob({"ones": 1}, folder=folder, ttl_s=120)
        self.hosts: HostMesh = self.job.state(timeout=END_LIMIT_S).ones
        self.report = self.job.status().hosts[0]
        assert self.report.control is not None
        self.control: str = self.report.control
        self.pem = PemCredentials.load(Path(self.job.folder, "keys", "controller"))

    @property
    def target(self) -> str:
        """The address of its control port, in the format of gRPC."""
        return self.control.partition("://")[2]

    def client(self) -> ControlClient:
        """Connect as the job's controller."""
        return ControlClient(self.control, self.pem)


@contextmanager
def applied_job(folder: Path) -> Iterator[Applied]:
    """Apply a job of one host inside the context, and release it afterwards."""
    one = Applied(folder)
    try:
        yield one
    finally:
        one.job.detach()
        one.job.kill()


def processes(client: ControlClient, kind: str) -> list[dict[str, Any]]:
    """List the processes of one kind."""
    told = as_dict(client.list_processes())["processes"]
    return [one for one in told if one["kind"] == kind]
