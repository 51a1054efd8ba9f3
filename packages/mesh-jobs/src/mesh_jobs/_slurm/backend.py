"""The SLURM backend, which submits one batch job for all meshes of a job."""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from mesh_jobs._backend.allocation_request import AllocationRequest
from mesh_jobs._backend.backend import Backend
from mesh_jobs._backend.log_tail import tail
from mesh_jobs._backend.report import Allocation, HostDraining, JobEvent, Phase, Report
from mesh_jobs._client.process import client_output
from mesh_jobs._errors import JobError, SchedulerUnreachable
from mesh_jobs._slurm.allocation import BatchJob, SlurmAllocation, host_ranges_of
from mesh_jobs._slurm.batch_script import BATCH_LOG, allocation_of, render, worker
from mesh_jobs._slurm.cancellation import cancel_jobs
from mesh_jobs._slurm.commands import Slurm
from mesh_jobs._slurm.eviction_notices import leaving, recorded_events
from mesh_jobs._slurm.job_array import (
    array_plan,
    array_report,
    array_script,
    forget_tasks,
    note_tasks,
    prepare_tasks,
    task_allocation,
    task_names,
)
from mesh_jobs._slurm.report import Place, report
from mesh_jobs._slurm.resize import shrink

__all__ = ["SlurmBackend"]

#: The time limit for a submission by a program that was killed: its `sbatch` may still be running.
_SUBMISSION_LIMIT_S = 90.0


class SlurmBackend(Backend):
    """Backend that submits one batch job; its workers report in a folder that all nodes share."""

    runs_clients = True

    def plan(self, request: AllocationRequest) -> str:
        """Return the batch script."""
        if self.options.get("array"):
            return array_plan(request, self.options)
        (job,) = allocation_of(request, self.options).jobs
        return render(request, self.options, job).script

    def allocate(self, request: AllocationRequest) -> Allocation:
        """Submit the batch script, unless it has been submitted."""
        if "array_name" in self.options:
            return self._task(request)
        allocation = allocation_of(request, self.options)
        if self.options.get("array"):
            return self._array(request, allocation)
        (job,) = allocation.jobs
        for mesh in request.spec.meshes:
            worker(request, mesh.name, self.options).save_secret()
        return replace(allocation, jobs=(self._submitted(request, allocation, job),)).to_json()

    def find(self, request: AllocationRequest) -> Allocation | None:
        """Return the allocation with its batch job; None if the job does not exist."""
        if "array_name" in self.options:
            found = task_allocation(request, self.options)
            return None if found is None else found.to_json()
        allocation = allocation_of(request, self.options)
        (job,) = allocation.jobs
        with _submitting(request):
            job_id = Slurm().find(job.name)
        return (
            None
            if job_id is None
            else replace(allocation, jobs=(replace(job, id=job_id),)).to_json()
        )

    def report(self, allocation: Allocation) -> Report:
        """Report the state of the job, from the scheduler and from the reports of its workers."""
        given = SlurmAllocation.from_json(allocation)
        return array_report(given) if given.array else report(given)

    def release(self, allocation: Allocation) -> None:
        """Cancel the job, and wait until it has ended on all nodes."""
        given = SlurmAllocation.from_json(allocation)
        # The names match batch jobs whose program died before it stored their ids.
        names = task_names(given) if given.array else (given.name,)
        ids = {job.id for job in given.jobs}
        cancel_jobs(lambda job_id, name: job_id in ids or name.startswith(names))
        if given.array:
            forget_tasks(given)

    def resize(self, allocation: Allocation, request: AllocationRequest) -> Allocation:
        """Release nodes of a mesh, or add nodes by another batch job; also replaces lost nodes."""
        old = SlurmAllocation.from_json(allocation)
        sizes = {mesh.name: mesh.hosts for mesh in request.spec.meshes}
        smaller = replace(old, meshes={one: min(sizes[one], old.meshes[one]) for one in sizes})
        surplus = set(old.places()) - set(smaller.places())
        new = shrink(smaller, surplus) if surplus else old
        wanted = replace(new, meshes=sizes)
        missing = set(wanted.places()) - set(smaller.places()) | _lost(new, smaller.places())
        host_ranges = host_ranges_of([place for place in wanted.places() if place in missing])
        if host_ranges:
            number = old.next_number
            job = BatchJob("", f"{old.name}-{number}", number, host_ranges)
            job = self._submitted(request, old, job)
            wanted = replace(wanted, jobs=(*new.jobs, job), next_number=number + 1)
        return wanted.to_json()

    def logs(self, allocation: Allocation, mesh: str, rank: int, lines: int) -> str:
        """Return the last lines of output of a worker, or of the batch script if there are none."""
        given = SlurmAllocation.from_json(allocation)
        output = tail(given.log(mesh, rank), lines)
        # If a worker was never started, only the output of the script explains why.
        script = BATCH_LOG.replace("%j", given.job_of((mesh, rank)).id)
        return output or tail(Path(given.batch_logs) / script, lines)

    def client_output(self, allocation: Allocation, start: int) -> bytes:
        """Read the log of the client script."""
        return client_output(SlurmAllocation.from_json(allocation).client_log, start)

    def events(self, allocation: Allocation) -> Sequence[JobEvent]:
        """Return the events that the batch scripts recorded: starts and eviction notices."""
        return recorded_events(SlurmAllocation.from_json(allocation))

    def leaving(self, allocation: Allocation) -> Sequence[HostDraining]:
        """Return the hosts of batch jobs that are being stopped, and those on draining nodes."""
        return leaving(SlurmAllocation.from_json(allocation))

    def _array(self, request: AllocationRequest, allocation: SlurmAllocation) -> Allocation:
        prepare_tasks(request, self.options)
        Path(allocation.batch_logs).mkdir(parents=True, exist_ok=True)
        (job,) = allocation.jobs
        with _submitting(request) as held:
            job_id = Slurm().find(job.name)
            if job_id is None:
                job_id = Slurm().submit(array_script(request, self.options), held)
        job = replace(job, id=job_id)
        note_tasks(request, self.options, job)
        return replace(allocation, jobs=(job,)).to_json()

    def _task(self, request: AllocationRequest) -> Allocation:
        found = task_allocation(request, self.options)
        if found is None:
            raise JobError("the array of this task is not submitted: apply the array")
        return found.to_json()

    def _submitted(
        self, request: AllocationRequest, allocation: SlurmAllocation, job: BatchJob
    ) -> BatchJob:
        """Submit a batch job, unless it has been submitted, and return it with its id."""
        Path(allocation.batch_logs).mkdir(parents=True, exist_ok=True)
        with _submitting(request) as held:
            job_id = Slurm().find(job.name)
            if job_id is None:
                job_id = Slurm().submit(render(request, self.options, job), held)
        return replace(job, id=job_id)


def _lost(allocation: SlurmAllocation, places: Sequence[Place]) -> set[Place]:
    """Return those of the given hosts that have ended while the job still runs."""
    found = report(replace(allocation, meshes=dict(_sizes(places))))
    if found.state is Phase.ENDED:
        return set()
    return {(host.mesh, host.rank) for host in found.hosts if host.state is Phase.ENDED}


def _sizes(places: Sequence[Place]) -> Counter[str]:
    return Counter(mesh for mesh, _ in places)


@contextmanager
def _submitting(request: AllocationRequest) -> Iterator[int]:
    """Hold the lock for submissions of this job, also against the `sbatch` of a killed program.

    Yields the file descriptor of the lock. Others are blocked as long as any process has it open.
    """
    path = request.folder / "workers" / "slurm-submission.lock"
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        until = time.monotonic() + _SUBMISSION_LIMIT_S
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise SchedulerUnreachable(
                        "another program is still submitting this job: try again later"
                    ) from None
                time.sleep(0.1)
        yield held
    finally:
        os.close(held)
