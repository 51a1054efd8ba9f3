"""What is kept of an allocation of SLURM: which batch jobs it has, and who is where in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["BatchJob", "Share", "SlurmTicket", "restarts_of", "shares_of"]

#: More than a job is ever put into the queue again: the epochs of no two batch jobs meet.
_RESTARTS_MAX = 10_000


@dataclass(frozen=True)
class Share:
    """Neighbouring hosts of one mesh, which one batch job has."""

    mesh: str
    first: int
    hosts: int

    def places(self) -> Iterator[tuple[str, int]]:
        """Yields mesh and rank of each of them."""
        for rank in range(self.first, self.first + self.hosts):
            yield self.mesh, rank


@dataclass(frozen=True)
class BatchJob:
    """One batch job; a mesh that has grown has one more.

    Attributes:
        id: Its id at the scheduler.
        name: Its name there: that id and name are both its own, no other job has.
        number: Its place among those of the allocation, from the beginning.
        shares: The hosts that it began with, in the order in which they were started.
    """

    id: str
    name: str
    number: int
    shares: tuple[Share, ...]

    @property
    def first_epoch(self) -> int:
        """The epoch of its first workers; one more for each time it is queued again."""
        return self.number * _RESTARTS_MAX

    def has_epoch(self, epoch: int) -> bool:
        """Says whether an epoch is one of this job's."""
        return epoch // _RESTARTS_MAX == self.number

    def places(self) -> list[tuple[str, int]]:
        """Returns mesh and rank of each of its hosts, in the order of its nodes."""
        return [place for share in self.shares for place in share.places()]


@dataclass(frozen=True)
class SlurmTicket:
    """An allocation.

    Attributes:
        name: How the names of all its batch jobs begin.
        folder: The job's own folder.
        logs: How the paths of the logs of its workers begin; mesh and rank follow.
        batch_logs: The folder with the logs of the scripts.
        meshes: How many hosts each mesh has now.
        jobs: Its batch jobs; where two have a place, it is that of the later one.
        next_number: The number of the next batch job: no two have the same, also not in turn.
        array: The indices of an array, whose tasks are jobs of their own; empty for any other.
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
        """Returns mesh and rank of each host that is asked for."""
        return [(mesh, rank) for mesh, hosts in self.meshes.items() for rank in range(hosts)]

    def job_of(self, place: tuple[str, int]) -> BatchJob:
        """Returns the batch job that has a host.

        Raises:
            KeyError: None has.
        """
        for job in reversed(self.jobs):
            if place in job.places():
                return job
        raise KeyError(place)

    def log(self, mesh: str, rank: int) -> Path:
        """Returns where the output of a worker goes."""
        return Path(f"{self.logs}{mesh}-{rank}.log")

    @property
    def client_log(self) -> Path:
        """Where the output of the client script goes."""
        return Path(f"{self.logs}client.log")

    def report_file(self, mesh: str, rank: int) -> Path:
        """Returns where a worker reports."""
        return self.folder / "workers" / f"{mesh}-{rank}.json"

    def ended_file(self, mesh: str, rank: int) -> Path:
        """Returns where is noted how a worker has ended."""
        return self.folder / "workers" / f"{mesh}-{rank}.ended"

    def to_json(self) -> dict[str, Any]:
        """Returns plain values that `from_json` reads."""
        jobs = [
            {
                "id": job.id,
                "name": job.name,
                "number": job.number,
                "shares": [[share.mesh, share.first, share.hosts] for share in job.shares],
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
    def from_json(cls, value: Mapping[str, Any]) -> SlurmTicket:
        """Reads what `to_json` gave."""
        jobs = tuple(
            BatchJob(job["id"], job["name"], job["number"], _shares(job["shares"]))
            for job in value["jobs"]
        )
        folder = Path(value["folder"])
        names = value["name"], folder, value["logs"], value["batch_logs"]
        return cls(*names, value["meshes"], jobs, value["next_number"], value.get("array", ""))


def restarts_of(epoch: int) -> int:
    """Returns how often a batch job was put into the queue again before an epoch."""
    return epoch % _RESTARTS_MAX


def shares_of(places: Sequence[tuple[str, int]]) -> tuple[Share, ...]:
    """Puts neighbouring hosts together."""
    shares: list[Share] = []
    for mesh, rank in places:
        last = shares[-1] if shares else None
        if last is not None and last.mesh == mesh and last.first + last.hosts == rank:
            shares[-1] = Share(mesh, last.first, last.hosts + 1)
        else:
            shares.append(Share(mesh, rank, 1))
    return tuple(shares)


def _shares(values: Sequence[Sequence[Any]]) -> tuple[Share, ...]:
    return tuple(Share(mesh, first, hosts) for mesh, first, hosts in values)
