"""Hosts for tests of programs on hosts, independent of any scheduler."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from mesh_jobs import ProcessJob

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import HostMesh

END_LIMIT_S = 30.0


@contextmanager
def loopback_hosts(count: int) -> Iterator[HostMesh]:
    """Attach to new workers inside the context, and terminate them afterwards."""
    # The hosts are from a job: a program uses one certificate authority, and other tests use jobs.
    with TemporaryDirectory(prefix="mesh-test-") as folder:
        job = ProcessJob({"hosts": count}, folder=folder, ttl_s=120)
        try:
            hosts = job.state(timeout=END_LIMIT_S).hosts
            hosts.initialized.get(timeout=END_LIMIT_S)
            yield hosts
        finally:
            job.detach()
            job.kill()


def is_alive(pid: int) -> bool:
    """Return whether a process runs; zombies do not count."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")
