"""Removal of nodes from running batch jobs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from mesh_jobs._errors import JobError, NotSupported
from mesh_jobs._slurm.allocation import BatchJob, SlurmAllocation
from mesh_jobs._slurm.cancellation import cancel_jobs
from mesh_jobs._slurm.commands import Slurm
from mesh_jobs._slurm.report import Place, components, nodes_at_start

__all__ = ["shrink"]


def shrink(allocation: SlurmAllocation, surplus: set[Place]) -> SlurmAllocation:
    """Release the nodes of some hosts; a batch job without remaining hosts is cancelled.

    Raises:
        NotSupported: SLURM cannot remove nodes from a heterogeneous job.
        JobError: The batch job is not running.
        SchedulerUnreachable: The scheduler cannot be reached.
    """
    kept, ended = [], set[str]()
    for job in allocation.jobs:
        mine = {place for place in job.places() if allocation.job_of(place) == job}
        left = [place for place in mine if place not in surplus and place in allocation.places()]
        if not left:
            ended.add(job.name)
            continue
        if mine & surplus:
            _shrink_job(allocation, job, surplus)
        kept.append(job)
    if ended:
        cancel_jobs(lambda _, name: name in ended)
    for mesh, rank in surplus:
        # A task that loses its node is killed and does not clean up.
        for path in (allocation.report_file(mesh, rank), allocation.ended_file(mesh, rank)):
            with suppress(FileNotFoundError):
                path.unlink()
    return replace(allocation, jobs=tuple(kept))


def _shrink_job(allocation: SlurmAllocation, job: BatchJob, surplus: set[Place]) -> None:
    parts = components(job)
    if len(parts) > 1:
        raise NotSupported(
            f"job {job.id} is heterogeneous, and SLURM cannot remove nodes from it: kill the job, "
            "and apply it again"
        )
    if not parts or parts[0].is_waiting or parts[0].is_over:
        state = parts[0].state if parts else "not known"
        raise JobError(
            f"job {job.id} is {state}: SLURM removes nodes only from a running job: wait until it "
            "runs"
        )
    slurm = Slurm()
    has = slurm.names(parts[0].nodes)
    began = nodes_at_start(allocation, job.first_epoch + parts[0].restarts)
    if not began:
        raise JobError(f"job {job.id} is about to start: wait for its hosts")
    names = slurm.names(began[0])
    gone = {
        name
        for place, name in zip(job.places(), names, strict=False)
        if place in surplus and allocation.job_of(place) == job
    }
    rest = [name for name in has if name not in gone]
    if rest != has:
        slurm.keep_nodes(job.id, rest, allocation.folder / "workers")
