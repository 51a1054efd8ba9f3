"""What the tests of a backend say of it to the conformance kit, and what is left after each."""

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
    """Makes a job of the backend under test; it is applied by the test."""

    def __call__(self, meshes: dict[str, int], name: str, *, ttl_s: float = 600.0) -> Job:
        """Makes a job with these meshes, whose state is in a folder of its own.

        Args:
            meshes: How many hosts each mesh has.
            name: What the job is called; no two jobs of a test have the same.
            ttl_s: What the job is to have as `ttl_s`.
        """
        ...


class BackendUnderTest:
    """How a scheduler is looked at, and how it breaks."""

    up_s: float = 60.0
    notice_s: float = 60.0
    end_s: float = 60.0
    hosts_max: int | None = None
    has_workers: bool = True

    def size(self, wanted: int) -> int:
        """Gives how many hosts a mesh is to have: as many as wanted, where that can be."""
        return wanted if self.hosts_max is None else min(wanted, self.hosts_max)

    def need_workers(self) -> None:
        """Skips the test where hosts have no workers."""
        if not self.has_workers:
            pytest.skip("its hosts are the program's own machine: no worker serves them")

    def check_workers(self, order_id: str, hosts: int) -> None:
        """Checks that as many workers run as there are hosts; none where hosts have none."""
        assert self.workers(order_id) == (hosts if self.has_workers else 0)

    def machines_tmp(self) -> Path | None:
        """Gives a folder that all machines see, where temporary files of theirs may be.

        None is that of this machine. Its path has to be short: sockets are in it.
        """
        return None

    def leftovers(self) -> list[str]:
        """Says what is left on machines after all jobs of a test were killed, by any name."""
        return []

    def workers(self, order_id: str) -> int:
        """Says how many workers of an order run or wait, from the scheduler's point of view."""
        pytest.skip("the backend's tests do not define workers(order_id)")

    def lose_host(self, job: Job, mesh: str, rank: int) -> None:
        """Takes a host away as a power cut does."""
        pytest.skip("the backend's tests do not define lose_host(job, mesh, rank)")

    def block_scheduler(self) -> AbstractContextManager[None]:
        """Has the scheduler not answer meanwhile."""
        pytest.skip("the backend's tests do not define block_scheduler()")

    def exhaust(self, factory: JobFactory) -> Job:
        """Makes a job that the scheduler cannot start now."""
        pytest.skip("the backend's tests do not define exhaust(factory)")

    @pytest.fixture
    def empty_tmp(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        """The folder for temporary files of all that a test starts: keys, sockets, segments."""
        # This program and pytest have theirs where they began: they end long after the test.
        this_host()
        assert tmp_path.exists()
        with TemporaryDirectory(prefix="mj-", dir=self.machines_tmp()) as folder:
            monkeypatch.setenv("TMPDIR", folder)
            monkeypatch.setattr(tempfile, "tempdir", folder)
            yield Path(folder)

    @pytest.fixture
    def make(self, empty_tmp: Path, factory: JobFactory) -> Iterator[JobFactory]:
        """As `factory`, and gives back what the test has not; counts what is left afterwards."""
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
            # Libraries of others have files of their own, and a program that is killed leaves them.
            named = [one for one in [*os.listdir(empty_tmp), *segments] if _is_of_a_job(one)]
            return named + self.leftovers()

        until = time.monotonic() + self.end_s
        while (found := left()) and time.monotonic() < until:
            time.sleep(PAUSE_S)
        assert not found, f"left behind: {found}"


def _is_of_a_job(name: str) -> bool:
    # What is recorded of programs that run beside the tests is theirs.
    return "mesh" in name and not name.startswith("mesh-telemetry-")
