"""SLURM as a backend: one batch job for all meshes of a job."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from mesh_jobs._backend import Backend
from mesh_jobs._errors import SchedulerUnreachable
from mesh_jobs._order import Order
from mesh_jobs._report import JobEvent, Report, Ticket
from mesh_jobs._slurm_commands import Slurm
from mesh_jobs._slurm_ending import end_jobs
from mesh_jobs._slurm_report import report
from mesh_jobs._slurm_resize import shrunk
from mesh_jobs._slurm_script import BATCH_LOG, EVENTS, render, ticket_of, worker
from mesh_jobs._slurm_ticket import BatchJob, Share, SlurmTicket
from mesh_jobs._tail import tail

__all__ = ["SlurmBackend"]

#: How long to wait for a program that was killed while it submitted: its `sbatch` may go on.
_SUBMISSION_LIMIT_S = 90.0


class SlurmBackend(Backend):
    """Submits one job for all meshes; its workers report in a folder that all nodes see."""

    def plan(self, order: Order) -> str:
        """Gives the batch script."""
        (job,) = ticket_of(order, self.options).jobs
        return render(order, self.options, job).script

    def allocate(self, order: Order) -> Ticket:
        """Submits the script, unless that was done."""
        ticket = ticket_of(order, self.options)
        (job,) = ticket.jobs
        for mesh in order.spec.meshes:
            worker(order, mesh.name, self.options).save_secret()
        return replace(ticket, jobs=(self._submitted(order, ticket, job),)).to_json()

    def find(self, order: Order) -> Ticket | None:
        """Gives the ticket of the job of that order, None when there is none."""
        ticket = ticket_of(order, self.options)
        (job,) = ticket.jobs
        with _submitting(order):
            job_id = Slurm().find(job.name)
        return (
            None if job_id is None else replace(ticket, jobs=(replace(job, id=job_id),)).to_json()
        )

    def report(self, ticket: Ticket) -> Report:
        """Says how the job is, by what the scheduler says and its workers have reported."""
        return report(SlurmTicket.from_json(ticket))

    def release(self, ticket: Ticket) -> None:
        """Cancels the job, and waits until it has ended on all nodes."""
        given = SlurmTicket.from_json(ticket)
        # Also what a program has submitted that died before it could note it.
        end_jobs(lambda name: name.startswith(given.name))

    def resize(self, ticket: Ticket, order: Order) -> Ticket:
        """Gives back nodes of a mesh, or gets more of them by another batch job."""
        old = SlurmTicket.from_json(ticket)
        sizes = {mesh.name: mesh.hosts for mesh in order.spec.meshes}
        smaller = replace(old, meshes={one: min(sizes[one], old.meshes[one]) for one in sizes})
        surplus = set(old.places()) - set(smaller.places())
        new = shrunk(smaller, surplus) if surplus else old
        shares = tuple(
            Share(mesh, old.meshes[mesh], hosts - old.meshes[mesh])
            for mesh, hosts in sizes.items()
            if hosts > old.meshes[mesh]
        )
        if shares:
            number = old.next_number
            job = BatchJob("", f"{old.name}-{number}", number, shares)
            job = self._submitted(order, old, job)
            new = replace(new, jobs=(*new.jobs, job), next_number=number + 1)
        return replace(new, meshes=sizes).to_json()

    def logs(self, ticket: Ticket, mesh: str, rank: int, lines: int) -> str:
        """Gives the end of what a worker has printed, or of what the script has."""
        given = SlurmTicket.from_json(ticket)
        told = tail(given.log(mesh, rank), lines)
        # A worker that was never started is what the script can tell of.
        script = BATCH_LOG.replace("%j", given.job_of((mesh, rank)).id)
        return told or tail(Path(given.batch_logs) / script, lines)

    def events(self, ticket: Ticket) -> Sequence[JobEvent]:
        """Gives what the scripts have noted: starts, and warnings of the scheduler."""
        try:
            text = (SlurmTicket.from_json(ticket).folder / EVENTS).read_text()
        except FileNotFoundError:
            return ()
        found = []
        for line in text.splitlines():
            at, restarts, kind, *words = line.split()
            again = f", restart {restarts}" if kind == "started" and restarts != "0" else ""
            found.append(JobEvent(float(at), kind, " ".join(words) + again))
        return found

    def _submitted(self, order: Order, ticket: SlurmTicket, job: BatchJob) -> BatchJob:
        """Submits a batch job unless that was done, and returns it with its id."""
        Path(ticket.batch_logs).mkdir(parents=True, exist_ok=True)
        with _submitting(order) as held:
            job_id = Slurm().find(job.name)
            if job_id is None:
                job_id = Slurm().submit(render(order, self.options, job), held)
        return replace(job, id=job_id)


@contextmanager
def _submitting(order: Order) -> Iterator[int]:
    """Waits until no other program submits for this job, nor one that was killed at it.

    Gives the file descriptor that keeps others waiting for as long as anybody has it open.
    """
    path = order.folder / "workers" / "slurm-submission.lock"
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
                        "another program has been submitting this job for long: try again later"
                    ) from None
                time.sleep(0.1)
        yield held
    finally:
        os.close(held)
