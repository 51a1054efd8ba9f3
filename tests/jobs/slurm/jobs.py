"""Jobs of tests on the cluster, and the actors on their hosts."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mesh_core import Actor, HostMesh, endpoint
from mesh_jobs import JobStatus, SchedulerUnreachable, SlurmJob

#: Time limit for actions of the cluster, in seconds.
LIMIT_S = 60.0


class Member(Actor):
    """Returns the name of its host."""

    @endpoint
    def host(self) -> str:
        return socket.gethostname()

    @endpoint
    def variable(self, name: str) -> str | None:
        return os.environ.get(name)


class Counter(Actor):
    """Counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    @endpoint
    def add(self) -> tuple[int, str]:
        """Return how many calls it has received, and its host."""
        self.count += 1
        return self.count, socket.gethostname()


class Jobs:
    """Creates jobs in the folder of a test, and releases their hosts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: list[SlurmJob] = []

    def __call__(self, meshes: dict[str, int], context: str = "default", **more: Any) -> SlurmJob:
        """Create a job in the folder; equal arguments give another object for the same job."""
        more = {"name": "test", "time_limit": 10, "folder": self._folder, **more}
        if context != "default":
            more["context"] = context
        job = SlurmJob(meshes, **more)
        self._made.append(job)
        return job

    def close(self) -> None:
        """Release all jobs."""
        for job in self._made:
            job.kill()


def members(hosts: HostMesh) -> Any:
    """Spawn one actor on each host."""
    return hosts.spawn_procs({"procs": 1}).spawn("members", Member)


def names(hosts: HostMesh) -> list[str]:
    """Return the names of the hosts of a mesh."""
    procs = hosts.spawn_procs({"procs": 1})
    try:
        found: list[str] = procs.spawn("members", Member).host.call().get(timeout=LIMIT_S).values()
        return found
    finally:
        # Nothing else would stop these processes.
        procs.stop().get(timeout=LIMIT_S)


def status_when(job: SlurmJob, is_so: Callable[[JobStatus], bool]) -> JobStatus:
    """Poll the status until the condition holds, and return that status."""
    until = time.monotonic() + LIMIT_S
    while (status := _status(job)) is None or not is_so(status):
        assert time.monotonic() < until, f"it is not so after {LIMIT_S:.0f} s: {status}"
        time.sleep(0.2)
    return status


def _status(job: SlurmJob) -> JobStatus | None:
    try:
        return job.status()
    except SchedulerUnreachable:
        return None


def ids() -> list[str]:
    """Return the ids of all running or pending jobs, as printed by the scheduler."""
    return said("squeue", "--noheader", "--array", "--format=%i").split()


def end_all() -> None:
    """Cancel all jobs that a test has left behind."""
    said("scancel", "--user=root")
    wait_for_no_jobs()


def wait_for_no_jobs() -> None:
    """Wait until no job is running or pending."""
    eventually(lambda: ids() == [])


def eventually(is_so: Callable[[], bool]) -> None:
    """Poll until the condition holds."""
    until = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < until, f"it is not so after {LIMIT_S:.0f} s; jobs: {ids()}"
        time.sleep(0.1)


def said(*words: str) -> str:
    """Return the output of a command."""
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout


@contextmanager
def drained(node: str) -> Iterator[None]:
    """Drain a node for the duration of the block."""
    said("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    try:
        yield
    finally:
        said("scontrol", "update", f"nodename={node}", "state=resume")
