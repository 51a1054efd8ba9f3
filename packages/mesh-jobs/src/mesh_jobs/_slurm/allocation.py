"""A SLURM allocation: its batch jobs, and the hosts of each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["BatchJob", "HostRange", "SlurmAllocation", "host_ranges_of", "restarts_of"]

#: Exceeds the number of requeues of any job, so that the epochs of batch jobs do not overlap.
_RESTARTS_MAX = 10_000


@dataclass(frozen=True)
class HostRange:
    """Consecutive hosts of one mesh in one batch job."""

    mesh: str
    first: int
    hosts: int

    def places(self) -> Iterator[tuple[str, int]]:
        """Iterate over the mesh and the rank of each host."""
        for rank in range(self.first, self.first + self.hosts):
            yield self.mesh, rank


@dataclass(frozen=True)
class BatchJob:
    """A batch job; each growth of a mesh adds one.

    Attributes:
        id: The id of the job at the scheduler.
        name: The name of the job at the scheduler; no other job has both this id and this name.
        number: The sequence number within the allocation.
        host_ranges: The initial hosts, in the order in which they were started.
    """

    id: str
    name: str
    number: int
    host_ranges: tuple[HostRange, ...]

    @property
    def first_epoch(self) -> int:
        """The epoch of its first workers; each requeue increases the epoch by one."""
        return self.number * _RESTARTS_MAX

    def has_epoch(self, epoch: int) -> bool:
        """Return whether an epoch belongs to this job."""
        return epoch // _RESTARTS_MAX == self.number

    def places(self) -> list[tuple[str, int]]:
        """Return the mesh and the rank of each host, in the order of the nodes."""
        return [place for host_range in self.host_ranges for place in host_range.places()]


@dataclass(frozen=True)
class SlurmAllocation:
    """An allocation.

    Attributes:
        name: The common prefix of the names of all batch jobs.
        folder: The folder of the job.
        logs: The common prefix of the log paths of workers; the mesh and the rank follow.
        batch_logs: The folder with the logs of the batch scripts.
        meshes: The current number of hosts of each mesh.
        jobs: The batch jobs; if two of them contain the same host, the later one has it.
        next_number: The number of the next batch job; numbers are never reused.
        array: The indices of an array, whose tasks are separate jobs; empty for other jobs.
    """

    name: str
    folder: Path
    logs: str
    batch_logs: str
    meshes: Mapping[str, int]
    jobs: tuple[BatchJob, ...]
    next_number: int
    array: str = ""

    def places(self) -> list[tuple[str, int]]:
        """Return the mesh and the rank of each requested host."""
        return [(mesh, rank) for mesh, hosts in self.meshes.items() for rank in range(hosts)]

    def job_of(self, place: tuple[str, int]) -> BatchJob:
        """Return the batch job of a host.

        Raises:
            KeyError: No batch job contains the host.
        """
        for job in reversed(self.jobs):
            if place in job.places():
                return job
        raise KeyError(place)

    def log(self, mesh: str, rank: int) -> Path:
        """Return the path of a worker's output."""
        return Path(f"{self.logs}{mesh}-{rank}.log")

    @property
    def client_log(self) -> Path:
        """The path of the client script's output."""
        return Path(f"{self.logs}client.log")

    def report_file(self, mesh: str, rank: int) -> Path:
        """Return the path of a worker's report."""
        return self.folder / "workers" / f"{mesh}-{rank}.json"

    def ended_file(self, mesh: str, rank: int) -> Path:
        """Return the path of the file that records the exit status of a worker."""
        return self.folder / "workers" / f"{mesh}-{rank}.ended"

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads."""
        jobs = [
            {
                "id": job.id,
                "name": job.name,
                "number": job.number,
                "host_ranges": [
                    [host_range.mesh, host_range.first, host_range.hosts]
                    for host_range in job.host_ranges
                ],
            }
            for job in self.jobs
        ]
        return {
            "name": self.name,
            "folder": str(self.folder),
            "logs": self.logs,
            "batch_logs": self.batch_logs,
            "meshes": dict(self.meshes),
            "jobs": jobs,
            "next_number": self.next_number,
            "array": self.array,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SlurmAllocation:
        """Create an allocation from the values that `to_json` returned."""
        jobs = tuple(
            BatchJob(job["id"], job["name"], job["number"], _host_ranges(job["host_ranges"]))
            for job in value["jobs"]
        )
        folder = Path(value["folder"])
        names = value["name"], folder, value["logs"], value["batch_logs"]
        return cls(*names, value["meshes"], jobs, value["next_number"], value.get("array", ""))


def restarts_of(epoch: int) -> int:
    """Return how often a batch job had been requeued when an epoch began."""
    return epoch % _RESTARTS_MAX


def host_ranges_of(places: Sequence[tuple[str, int]]) -> tuple[HostRange, ...]:
    """Group consecutive hosts."""
    host_ranges: list[HostRange] = []
    for mesh, rank in places:
        last = host_ranges[-1] if host_ranges else None
        if last is not None and last.mesh == mesh and last.first + last.hosts == rank:
            host_ranges[-1] = HostRange(mesh, last.first, last.hosts + 1)
        else:
            host_ranges.append(HostRange(mesh, rank, 1))
    return tuple(host_ranges)


def _host_ranges(values: Sequence[Sequence[Any]]) -> tuple[HostRange, ...]:
    return tuple(HostRange(mesh, first, hosts) for mesh, first, hosts in values)
