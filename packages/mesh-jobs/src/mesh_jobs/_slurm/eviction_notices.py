"""Eviction notices from SLURM: signals that batch scripts recorded, and drained nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from mesh_jobs._backend.report import HostDraining, JobEvent
from mesh_jobs._slurm.allocation import BatchJob, SlurmAllocation, restarts_of
from mesh_jobs._slurm.batch_script import EVENTS
from mesh_jobs._slurm.commands import Slurm, duration_s
from mesh_jobs._slurm.report import Place, components, nodes_at_start

__all__ = ["leaving", "recorded_events"]

_WORDS = {
    "timeout": "the time limit is near",
    "preempt": "the nodes are preempted for another job",
    "drain": "the node is drained",
    "end": "the scheduler terminates the job",
}


@dataclass(frozen=True)
class _RecordedLine:
    """One line that a batch script recorded."""

    at: float
    epoch: int
    kind: str
    details: tuple[str, ...]

    def fields(self) -> dict[str, str]:
        return dict(word.split("=", 1) for word in self.details if "=" in word)


def recorded_events(allocation: SlurmAllocation) -> list[JobEvent]:
    """Return the events that the batch scripts recorded, oldest first."""
    return [JobEvent(line.at, line.kind, _text(line)) for line in _recorded_lines(allocation)]


def leaving(allocation: SlurmAllocation) -> list[HostDraining]:
    """Return the hosts that are about to be evicted, each with its most urgent notice.

    Raises:
        SchedulerUnreachable: The state of the nodes cannot be queried.
    """
    found: dict[Place, HostDraining] = {}
    for job in dict.fromkeys(map(allocation.job_of, allocation.places())):
        mine = [place for place in job.places() if _has(allocation, place, job)]
        found |= {one.place: one for one in _drained(allocation, job)}
        lines = [line for line in _recorded_lines(allocation) if job.has_epoch(line.epoch)]
        for line in lines:
            if line.kind == "started":
                # A new start makes earlier notices obsolete.
                found = {place: one for place, one in found.items() if one.reason == "drain"}
            elif line.kind in ("leaving", "stopping"):
                reason, seconds = _why(line)
                left = None if seconds is None else max(line.at + seconds - time.time(), 0.0)
                found |= {place: HostDraining(*place, reason, left, line.epoch) for place in mine}
    return list(found.values())


def _why(line: _RecordedLine) -> tuple[str, float | None]:
    """Return why a job is being stopped, and how many seconds it had at the time of the notice."""
    fields = line.fields()
    now, end = _moment(fields.get("now", "")), _moment(fields.get("EndTime", ""))
    seconds = None if now is None or end is None else max((end - now).total_seconds(), 0.0)
    if _moment(fields.get("PreemptTime", "")) is not None:
        return "preempt", seconds if fields.get("JobState") == "RUNNING" else None
    if fields.get("Restarts", "0") != str(restarts_of(line.epoch)):
        # The job is being requeued.
        return "preempt", None
    if line.kind == "leaving":
        # The scheduler sends this signal before the limit.
        return "timeout", seconds
    limit, run = (duration_s(fields.get(key, "")) for key in ("TimeLimit", "RunTime"))
    return "timeout" if limit is not None and run is not None and run >= limit else "end", None


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _text(line: _RecordedLine) -> str:
    if line.kind in ("leaving", "stopping"):
        reason, seconds = _why(line)
        return _WORDS[reason] + ("" if seconds is None else f": {seconds:.0f} s left")
    again = restarts_of(line.epoch)
    return " ".join(line.details) + (
        f", restart {again}" if line.kind == "started" and again else ""
    )


def _recorded_lines(allocation: SlurmAllocation) -> Iterator[_RecordedLine]:
    try:
        text = (allocation.folder / EVENTS).read_text()
    except FileNotFoundError:
        return
    for line in text.splitlines():
        at, epoch, kind, *details = line.split()
        yield _RecordedLine(float(at), int(epoch), kind, tuple(details))


def _has(allocation: SlurmAllocation, place: Place, job: BatchJob) -> bool:
    return place in allocation.places() and allocation.job_of(place) == job


def _drained(allocation: SlurmAllocation, job: BatchJob) -> Iterator[HostDraining]:
    """Yield the hosts on nodes that an administrator drains."""
    parts = components(job)
    if not parts or parts[0].is_over or parts[0].is_waiting:
        return
    epoch = job.first_epoch + parts[0].restarts
    slurm = Slurm()
    names = [name for nodes in nodes_at_start(allocation, epoch) for name in slurm.names(nodes)]
    drained = {node.name for node in slurm.nodes(names) if "DRAIN" in node.state}
    for place, name in zip(job.places(), names, strict=False):
        if name in drained and _has(allocation, place, job):
            yield HostDraining(*place, "drain", None, epoch)
