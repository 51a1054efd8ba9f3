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
class _Note:
    """One line that a batch script recorded."""

    at: float
    epoch: int
    kind: str
    words: tuple[str, ...]

    def fields(self) -> dict[str, str]:
        return dict(word.split("=", 1) for word in self.words if "=" in word)


def recorded_events(allocation: SlurmAllocation) -> list[JobEvent]:
    """Return the events that the batch scripts recorded, oldest first."""
    return [JobEvent(note.at, note.kind, _text(note)) for note in _notes(allocation)]


def leaving(allocation: SlurmAllocation) -> list[HostDraining]:
    """Return the hosts that are about to be evicted, each with its most urgent notice.

    Raises:
        SchedulerUnreachable: The state of the nodes cannot be queried.
    """
    found: dict[Place, HostDraining] = {}
    for job in dict.fromkeys(map(allocation.job_of, allocation.places())):
        mine = [place for place in job.places() if _has(allocation, place, job)]
        found |= {one.place: one for one in _drained(allocation, job)}
        notes = [note for note in _notes(allocation) if job.has_epoch(note.epoch)]
        for note in notes:
            if note.kind == "started":
                # A new start makes earlier notices obsolete.
                found = {place: one for place, one in found.items() if one.reason == "drain"}
            elif note.kind in ("leaving", "stopping"):
                reason, seconds = _why(note)
                left = None if seconds is None else max(note.at + seconds - time.time(), 0.0)
                found |= {place: HostDraining(*place, reason, left, note.epoch) for place in mine}
    return list(found.values())


def _why(note: _Note) -> tuple[str, float | None]:
    """Return why a job is being stopped, and how many seconds it had at the time of the notice."""
    told = note.fields()
    now, end = _moment(told.get("now", "")), _moment(told.get("EndTime", ""))
    seconds = None if now is None or end is None else max((end - now).total_seconds(), 0.0)
    if _moment(told.get("PreemptTime", "")) is not None:
        return "preempt", seconds if told.get("JobState") == "RUNNING" else None
    if told.get("Restarts", "0") != str(restarts_of(note.epoch)):
        # The job is being requeued.
        return "preempt", None
    if note.kind == "leaving":
        # The scheduler sends this signal before the limit.
        return "timeout", seconds
    limit, run = (duration_s(told.get(key, "")) for key in ("TimeLimit", "RunTime"))
    return "timeout" if limit is not None and run is not None and run >= limit else "end", None


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _text(note: _Note) -> str:
    if note.kind in ("leaving", "stopping"):
        reason, seconds = _why(note)
        return _WORDS[reason] + ("" if seconds is None else f": {seconds:.0f} s left")
    again = restarts_of(note.epoch)
    return " ".join(note.words) + (f", restart {again}" if note.kind == "started" and again else "")


def _notes(allocation: SlurmAllocation) -> Iterator[_Note]:
    try:
        text = (allocation.folder / EVENTS).read_text()
    except FileNotFoundError:
        return
    for line in text.splitlines():
        at, epoch, kind, *words = line.split()
        yield _Note(float(at), int(epoch), kind, tuple(words))


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
