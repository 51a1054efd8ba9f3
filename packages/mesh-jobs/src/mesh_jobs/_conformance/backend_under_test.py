"""The backend under test: its factory, its faults, and the check for leftovers of each test."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import pytest

from mesh_core import this_host
from mesh_jobs._conformance.steps import PAUSE_S
from mesh_jobs._job.job import Job

__all__ = ["BackendUnderTest", "JobFactory"]

_SHARED_MEMORY = "/dev/shm"


class JobFactory(Protocol):
    """Factory for jobs of the backend under test; the test applies them."""

    def __call__(self, meshes: dict[str, int], name: str, *, ttl_s: float = 600.0) -> Job:
        """Create a job with these meshes, whose state is in a separate folder.

        Args:
            meshes: The number of hosts of each mesh.
            name: The name of the job, unique within a test.
            ttl_s: The `ttl_s` of the job.
        """
        ...


class BackendUnderTest:
    """Methods that inspect the scheduler under test and inject faults."""

    up_s: float = 60.0
    notice_s: float = 60.0
    end_s: float = 60.0
    hosts_max: int | None = None
    has_workers: bool = True

    def size(self, wanted: int) -> int:
        """Return the number of hosts of a mesh: the requested number, up to the maximum."""
        return wanted if self.hosts_max is None else min(wanted, self.hosts_max)

    def need_workers(self) -> None:
        """Skip the test if hosts have no workers."""
        if not self.has_workers:
            pytest.skip("its hosts are the program's own machine: no worker serves them")

    def check_workers(self, allocation_id: str, hosts: int) -> None:
        """Check that one worker runs for each host, or none if hosts have no workers."""
        assert self.workers(allocation_id) == (hosts if self.has_workers else 0)

    def machines_tmp(self) -> Path | None:
        """Return the folder for temporary files that all machines share.

        None means the default folder of this machine. The path must be short, because it contains
        sockets.
        """
        return None

    def leftovers(self) -> list[str]:
        """Return the names of resources that remain after all jobs of a test were killed."""
        return []

    def workers(self, allocation_id: str) -> int:
        """Return how many workers run or are queued, according to the scheduler."""
        pytest.skip("the backend's tests do not define workers(allocation_id)")

    def lose_host(self, job: Job, mesh: str, rank: int) -> None:
        """Remove a host, as a power failure would."""
        pytest.skip("the backend's tests do not define lose_host(job, mesh, rank)")

    def block_scheduler(self) -> AbstractContextManager[None]:
        """Make the scheduler unreachable inside the context."""
        pytest.skip("the backend's tests do not define block_scheduler()")

    def exhaust(self, factory: JobFactory) -> Job:
        """Create a job that the scheduler cannot start at the moment."""
        pytest.skip("the backend's tests do not define exhaust(factory)")

    @pytest.fixture
    def empty_tmp(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        """Create a folder for the temporary files of all processes of a test."""
        # Create the temporary files of this program and pytest first: they remain in use long after
        # the test.
        this_host()
        assert tmp_path.exists()
        with TemporaryDirectory(prefix="mj-", dir=self.machines_tmp()) as folder:
            monkeypatch.setenv("TMPDIR", folder)
            monkeypatch.setattr(tempfile, "tempdir", folder)
            yield Path(folder)

    @pytest.fixture
    def make(self, empty_tmp: Path, factory: JobFactory) -> Iterator[JobFactory]:
        """Wrap `factory`; kill the jobs that the test has not killed, and check for leftovers."""
        made: list[Job] = []
        shared = set(os.listdir(_SHARED_MEMORY))

        def make(meshes: dict[str, int], name: str, *, ttl_s: float = 600.0) -> Job:
            job = factory(meshes, name, ttl_s=ttl_s)
            made.append(job)
            return job

        yield make
        for job in made:
            job.kill()
            assert not Path(job.folder).exists()

        def left() -> list[str]:
            segments = [one for one in os.listdir(_SHARED_MEMORY) if one not in shared]
            # Other libraries create files as well, and a killed program does not remove them.
            named = [one for one in [*os.listdir(empty_tmp), *segments] if _is_of_a_job(one)]
            return named + self.leftovers()

        until = time.monotonic() + self.end_s
        while (found := left()) and time.monotonic() < until:
            time.sleep(PAUSE_S)
        assert not found, f"left behind: {found}"


def _is_of_a_job(name: str) -> bool:
    # Telemetry records belong to programs that run concurrently with the tests.
    return "mesh" in name and not name.startswith("mesh-telemetry-")
