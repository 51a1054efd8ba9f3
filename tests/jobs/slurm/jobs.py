"""Jobs of tests on the cluster, and what runs on their hosts."""

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

#: How long to wait for what the cluster does sooner or later.
LIMIT_S = 60.0


class Member(Actor):
    """Says where it is."""

    @endpoint
    def host(self) -> str:
        return socket.gethostname()

    @endpoint
    def variable(self, name: str) -> str | None:
        return os.environ.get(name)


class Jobs:
    """Makes jobs in a folder of a test, and gives back what they have."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: list[SlurmJob] = []

    def __call__(self, meshes: dict[str, int], context: str = "default", **more: Any) -> SlurmJob:
        """Makes a job in the folder; the same again is another object for the same job."""
        more = {"job_name": "test", "time_limit": 10, "folder": self._folder, **more}
        if context != "default":
            more["context"] = context
        job = SlurmJob(meshes, **more)
        self._made.append(job)
        return job

    def close(self) -> None:
        """Gives all back."""
        for job in self._made:
            job.kill()


def members(hosts: HostMesh) -> Any:
    """Returns one actor for each host."""
    return hosts.spawn_procs({"procs": 1}).spawn("members", Member)


def names(hosts: HostMesh) -> list[str]:
    """Returns what the hosts of a mesh call themselves."""
    procs = hosts.spawn_procs({"procs": 1})
    try:
        found: list[str] = procs.spawn("members", Member).host.call().get(timeout=LIMIT_S).values()
        return found
    finally:
        # Nobody would look after what is left there.
        procs.stop().get(timeout=LIMIT_S)


def status_when(job: SlurmJob, is_so: Callable[[JobStatus], bool]) -> JobStatus:
    """Asks until it is so; the answer is the first for which it is."""
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
    """Returns the ids of all jobs that run or wait, in the scheduler's words."""
    return said("squeue", "--noheader", "--array", "--format=%i").split()


def end_all() -> None:
    """Ends what a test has left, of whatever kind."""
    said("scancel", "--user=root")
    wait_for_no_jobs()


def wait_for_no_jobs() -> None:
    """Waits until no job runs or waits, of whatever kind."""
    eventually(lambda: ids() == [])


def eventually(is_so: Callable[[], bool]) -> None:
    """Asks until it is so."""
    until = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < until, f"it is not so after {LIMIT_S:.0f} s; jobs: {ids()}"
        time.sleep(0.1)


def said(*words: str) -> str:
    """Returns what a command prints."""
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout


@contextmanager
def drained(node: str) -> Iterator[None]:
    """Keeps new jobs off a node."""
    said("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    try:
        yield
    finally:
        said("scontrol", "update", f"nodename={node}", "state=resume")
