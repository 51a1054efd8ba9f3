"""Job arrays, which submit several independent jobs at once; each task is a separate job.

Each task has its own context next to the array's, with its own record, keys and order, so it
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
from mesh_jobs._backend.order import Order
from mesh_jobs._backend.report import Phase, Report
from mesh_jobs._client.process import client_status
from mesh_jobs._errors import JobError
from mesh_jobs._job.state import detach_meshes
from mesh_jobs._slurm.array_indices import array_indices
from mesh_jobs._slurm.batch_script import directive, output_directive, render, ticket_of, worker
from mesh_jobs._slurm.commands import Slurm, SlurmTask, Submission
from mesh_jobs._slurm.ticket import BatchJob, SlurmTicket
from mesh_jobs._state.folder import StateFolder, remember
from mesh_jobs._state.record import Record

__all__ = [
    "array_plan",
    "array_report",
    "array_script",
    "forget_tasks",
    "note_tasks",
    "prepare_tasks",
    "task_folder",
    "task_names",
    "task_ticket",
]

_SCRIPT = "workers/slurm.sh"
_LOG = "logs/slurm-${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}.log"


def task_folder(array: Path, index: int) -> Path:
    """Return the state folder of a task."""
    return array.parent / f"{array.name}-{index}"


def array_plan(order: Order, options: Mapping[str, Any]) -> str:
    """Return the script of the array, and that of its first task."""
    first = next(_tasks(order, options))
    shown = "\n".join(f"# {line}" for line in first.script().script.splitlines())
    return f"{array_script(order, options).script}\n# task {first.index} runs:\n{shown}\n"


def array_script(order: Order, options: Mapping[str, Any]) -> Submission:
    """Return the script of the array, which executes the script of each task."""
    first = next(_tasks(order, options))
    submission = first.script()
    lines = submission.script.splitlines()
    is_own = ("#SBATCH --output", '#SBATCH "--output')
    directives = [
        line for line in lines if line.startswith("#SBATCH ") and not line.startswith(is_own)
    ]
    base = f"{shlex.quote(str(order.folder.absolute()))}-$SLURM_ARRAY_TASK_ID"
    lines = [
        "#!/bin/sh",
        *directives,
        output_directive(ticket_of(order, options)),
        directive(f"--array={options['array']}"),
        "",
        "umask 077",
        f'exec sh {base}/{_SCRIPT} >> {base}/"{_LOG}" 2>&1',
    ]
    return Submission("\n".join(lines) + "\n", submission.overridden)


def prepare_tasks(order: Order, options: Mapping[str, Any]) -> None:
    """Create the state of each task, unless it exists."""
    for task in _tasks(order, options):
        folder = StateFolder(task.order.folder)
        with folder.locked():
            known = folder.read()
            if known is not None and known.spec.options.get("array_of") != order.folder.name:
                raise JobError(
                    f"context {task.order.folder.name!r} belongs to another job: kill that job, or "
                    "give the array another context"
                )
            if known is None or known.order_id != task.order.id:
                folder.begin(order._credentials)
                for mesh in task.order.spec.meshes:
                    worker(task.order, mesh.name, options).save_secret()
                script = task.script().script
                write_private(folder.path / _SCRIPT, script.encode())
                folder.write(Record(task.order.spec, task.order.id))
                folder.note("applied", f"as task {task.index} of {order.folder.name!r}")
        remember(folder.path)


def note_tasks(order: Order, options: Mapping[str, Any], job: BatchJob) -> None:
    """Store the scheduler's id of each task in its record."""
    for task in _tasks(order, options):
        folder = StateFolder(task.order.folder)
        with folder.locked():
            known = folder.read()
            if known is not None and known.order_id == task.order.id and known.ticket is None:
                own = replace(task.ticket().jobs[0], id=f"{job.id}_{task.index}")
                ticket = replace(task.ticket(), jobs=(own,))
                folder.write(replace(known, ticket=ticket.to_json()))


def array_report(ticket: SlurmTicket) -> Report:
    """Report how many tasks are pending, running and ended, and their first nonzero exit status.

    Raises:
        SchedulerUnreachable: The scheduler cannot be reached.
    """
    (job,) = ticket.jobs
    tasks = Slurm().tasks(job.id, job.name)
    states = Counter(task.state for task in tasks)
    reason = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    statuses = [
        client.status
        for index in array_indices(ticket.array)
        if (client := client_status(task_folder(ticket.folder, index))) is not None
    ]
    exit_code = None
    if statuses and None not in statuses:
        exit_code = next((status for status in statuses if status), 0)
    return Report(_phase(tasks), reason or "the scheduler no longer knows it", (), exit_code)


def task_ticket(order: Order, options: Mapping[str, Any]) -> SlurmTicket | None:
    """Return the ticket of a task; None if its array has not been submitted.

    Raises:
        SchedulerUnreachable: The scheduler cannot be reached.
        JobError: The task does not belong to the applied array.
    """
    name, index = options["array_name"], options["array_index"]
    if order.id != _task_id(name, index):
        raise JobError("a task of an array cannot be applied alone: apply the array again")
    job_id = Slurm().find(name)
    ticket = _Task(index, order, name).ticket()
    job = replace(ticket.jobs[0], id=f"{job_id}_{index}")
    return None if job_id is None else replace(ticket, jobs=(job,))


def task_names(ticket: SlurmTicket) -> tuple[str, ...]:
    """Return the name prefixes of all batch jobs of an array, including those that tasks added."""
    prefix = ticket.name.rpartition("-")[0]
    ids = (_task_id(ticket.name, index) for index in array_indices(ticket.array))
    return (ticket.name, *(f"{prefix}-{one}" for one in ids))


def forget_tasks(ticket: SlurmTicket) -> None:
    """Remove the state of each task, after all of them have ended."""
    for index in array_indices(ticket.array):
        folder = StateFolder(task_folder(ticket.folder, index))
        if folder.path.exists():
            with folder.locked():
                known = folder.read()
                if known is not None and known.spec.options.get("array_of") == ticket.folder.name:
                    detach_meshes(known.order_id)
                    folder.clear()


@dataclass(frozen=True)
class _Task:
    """A task as a job."""

    index: int
    order: Order
    array_name: str

    def ticket(self) -> SlurmTicket:
        """Return its ticket, whose first batch job has the name of the array.

        Batch jobs that are added later have names of this task.
        """
        ticket = ticket_of(self.order, self.order.spec.options)
        return replace(ticket, jobs=(replace(ticket.jobs[0], name=self.array_name),))

    def script(self) -> Submission:
        """Return its batch script."""
        return render(self.order, self.order.spec.options, self.ticket().jobs[0])


def _tasks(order: Order, options: Mapping[str, Any]) -> Iterator[_Task]:
    folder = order.folder.absolute()
    rest = {key: value for key, value in order.spec.options.items() if key != "array"}
    for index in array_indices(options["array"]):
        name = ticket_of(order, options).name
        whose = {"array_of": folder.name, "array_name": name, "array_index": index}
        spec = replace(order.spec, options={**rest, **whose})
        own = Order(_task_id(name, index), spec, task_folder(folder, index), order._credentials)
        yield _Task(index, own, name)


def _task_id(array_name: str, index: int) -> str:
    """Return the order id of a task, which is derived from the name of the array."""
    return uuid.uuid5(uuid.NAMESPACE_OID, f"{array_name}-{index}").hex


def _phase(tasks: Sequence[SlurmTask]) -> Phase:
    if all(task.is_over for task in tasks):
        return Phase.ENDED
    return Phase.RUNNING if any(not task.is_waiting for task in tasks) else Phase.PENDING
