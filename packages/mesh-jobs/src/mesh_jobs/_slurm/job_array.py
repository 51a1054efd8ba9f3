"""Job arrays, which submit several independent jobs at once; each task is a separate job.

Each task has its own context next to the array's, with its own record, keys and allocation, so it
behaves like any other job. The array itself stores only which tasks it has.
"""

from __future__ import annotations

import shlex
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mesh_jobs._atomic_files import write_private
from mesh_jobs._backend.allocation_request import AllocationRequest
from mesh_jobs._backend.report import Phase, Report
from mesh_jobs._client.process import client_status
from mesh_jobs._errors import JobError
from mesh_jobs._job.state import detach_meshes
from mesh_jobs._slurm.allocation import BatchJob, SlurmAllocation
from mesh_jobs._slurm.array_indices import array_indices
from mesh_jobs._slurm.batch_script import allocation_of, directive, output_directive, render, worker
from mesh_jobs._slurm.commands import Slurm, SlurmTask, Submission
from mesh_jobs._state.folder import StateFolder, remember
from mesh_jobs._state.record import Record

__all__ = [
    "array_plan",
    "array_report",
    "array_script",
    "forget_tasks",
    "note_tasks",
    "prepare_tasks",
    "task_allocation",
    "task_folder",
    "task_names",
]

_SCRIPT = "workers/slurm.sh"
_LOG = "logs/slurm-${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}.log"


def task_folder(array: Path, index: int) -> Path:
    """Return the state folder of a task."""
    return array.parent / f"{array.name}-{index}"


def array_plan(request: AllocationRequest, options: Mapping[str, Any]) -> str:
    """Return the script of the array, and that of its first task."""
    first = next(_tasks(request, options))
    shown = "\n".join(f"# {line}" for line in first.script().script.splitlines())
    return f"{array_script(request, options).script}\n# task {first.index} runs:\n{shown}\n"


def array_script(request: AllocationRequest, options: Mapping[str, Any]) -> Submission:
    """Return the script of the array, which executes the script of each task."""
    first = next(_tasks(request, options))
    submission = first.script()
    lines = submission.script.splitlines()
    is_own = ("#SBATCH --output", '#SBATCH "--output')
    directives = [
        line for line in lines if line.startswith("#SBATCH ") and not line.startswith(is_own)
    ]
    base = f"{shlex.quote(str(request.folder.absolute()))}-$SLURM_ARRAY_TASK_ID"
    lines = [
        "#!/bin/sh",
        *directives,
        output_directive(allocation_of(request, options)),
        directive(f"--array={options['array']}"),
        "",
        "umask 077",
        f'exec sh {base}/{_SCRIPT} >> {base}/"{_LOG}" 2>&1',
    ]
    return Submission("\n".join(lines) + "\n", submission.overridden)


def prepare_tasks(request: AllocationRequest, options: Mapping[str, Any]) -> None:
    """Create the state of each task, unless it exists."""
    for task in _tasks(request, options):
        folder = StateFolder(task.request.folder)
        with folder.locked():
            known = folder.read()
            if known is not None and known.spec.options.get("array_of") != request.folder.name:
                raise JobError(
                    f"context {task.request.folder.name!r} belongs to another job: kill that job, "
                    "or give the array another context"
                )
            if known is None or known.allocation_id != task.request.id:
                folder.begin(request._credentials)
                for mesh in task.request.spec.meshes:
                    worker(task.request, mesh.name, options).save_secret()
                script = task.script().script
                write_private(folder.path / _SCRIPT, script.encode())
                folder.write(Record(task.request.spec, task.request.id))
                folder.note("applied", f"as task {task.index} of {request.folder.name!r}")
        remember(folder.path)


def note_tasks(request: AllocationRequest, options: Mapping[str, Any], job: BatchJob) -> None:
    """Store the scheduler's id of each task in its record."""
    for task in _tasks(request, options):
        folder = StateFolder(task.request.folder)
        with folder.locked():
            known = folder.read()
            if (
                known is not None
                and known.allocation_id == task.request.id
                and known.allocation is None
            ):
                own = replace(task.allocation().jobs[0], id=f"{job.id}_{task.index}")
                allocation = replace(task.allocation(), jobs=(own,))
                folder.write(replace(known, allocation=allocation.to_json()))


def array_report(allocation: SlurmAllocation) -> Report:
    """Report how many tasks are pending, running and ended, and their first nonzero exit status.

    Raises:
        SchedulerUnreachable: The scheduler cannot be reached.
    """
    (job,) = allocation.jobs
    tasks = Slurm().tasks(job.id, job.name)
    states = Counter(task.state for task in tasks)
    reason = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    statuses = [
        client.status
        for index in array_indices(allocation.array)
        if (client := client_status(task_folder(allocation.folder, index))) is not None
    ]
    exit_code = None
    if statuses and None not in statuses:
        exit_code = next((status for status in statuses if status), 0)
    return Report(_phase(tasks), reason or "the scheduler no longer knows it", (), exit_code)


def task_allocation(
    request: AllocationRequest, options: Mapping[str, Any]
) -> SlurmAllocation | None:
    """Return the allocation of a task; None if its array has not been submitted.

    Raises:
        SchedulerUnreachable: The scheduler cannot be reached.
        JobError: The task does not belong to the applied array.
    """
    name, index = options["array_name"], options["array_index"]
    if request.id != _task_id(name, index):
        raise JobError("a task of an array cannot be applied alone: apply the array again")
    job_id = Slurm().find(name)
    allocation = _Task(index, request, name).allocation()
    job = replace(allocation.jobs[0], id=f"{job_id}_{index}")
    return None if job_id is None else replace(allocation, jobs=(job,))


def task_names(allocation: SlurmAllocation) -> tuple[str, ...]:
    """Return the name prefixes of all batch jobs of an array, including those that tasks added."""
    prefix = allocation.name.rpartition("-")[0]
    ids = (_task_id(allocation.name, index) for index in array_indices(allocation.array))
    return (allocation.name, *(f"{prefix}-{one}" for one in ids))


def forget_tasks(allocation: SlurmAllocation) -> None:
    """Remove the state of each task, after all of them have ended."""
    for index in array_indices(allocation.array):
        folder = StateFolder(task_folder(allocation.folder, index))
        if folder.path.exists():
            with folder.locked():
                known = folder.read()
                if (
                    known is not None
                    and known.spec.options.get("array_of") == allocation.folder.name
                ):
                    detach_meshes(known.allocation_id)
                    folder.clear()


@dataclass(frozen=True)
class _Task:
    """A task as a job."""

    index: int
    request: AllocationRequest
    array_name: str

    def allocation(self) -> SlurmAllocation:
        """Return its allocation, whose first batch job has the name of the array.

        Batch jobs that are added later have names of this task.
        """
        allocation = allocation_of(self.request, self.request.spec.options)
        return replace(allocation, jobs=(replace(allocation.jobs[0], name=self.array_name),))

    def script(self) -> Submission:
        """Return its batch script."""
        return render(self.request, self.request.spec.options, self.allocation().jobs[0])


def _tasks(request: AllocationRequest, options: Mapping[str, Any]) -> Iterator[_Task]:
    folder = request.folder.absolute()
    rest = {key: value for key, value in request.spec.options.items() if key != "array"}
    for index in array_indices(options["array"]):
        name = allocation_of(request, options).name
        whose = {"array_of": folder.name, "array_name": name, "array_index": index}
        spec = replace(request.spec, options={**rest, **whose})
        own = AllocationRequest(
            _task_id(name, index), spec, task_folder(folder, index), request._credentials
        )
        yield _Task(index, own, name)


def _task_id(array_name: str, index: int) -> str:
    """Return the allocation id of a task, which is derived from the name of the array."""
    return uuid.uuid5(uuid.NAMESPACE_OID, f"{array_name}-{index}").hex


def _phase(tasks: Sequence[SlurmTask]) -> Phase:
    if all(task.is_over for task in tasks):
        return Phase.ENDED
    return Phase.RUNNING if any(not task.is_waiting for task in tasks) else Phase.PENDING
