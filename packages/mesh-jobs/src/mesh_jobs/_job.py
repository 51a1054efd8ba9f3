"""A job: hosts from a scheduler, applied once and used by program after program."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from mesh_core import ConfigError
from mesh_jobs._applying import begin, carry_on, give_back, resize
from mesh_jobs._backend import Backend
from mesh_jobs._errors import (
    JobEnded,
    JobError,
    JobMismatch,
    JobPending,
    NotSupported,
    SchedulerUnreachable,
)
from mesh_jobs._job_state import JobState, attach_mesh, detach_meshes
from mesh_jobs._order import Order
from mesh_jobs._plugins import load_backend
from mesh_jobs._record import Record
from mesh_jobs._report import JobEvent, Phase, Report, Ticket
from mesh_jobs._spec import JobSpec, MeshSpec, differences
from mesh_jobs._state import StateFolder, applied_folders, find_folder
from mesh_jobs._status import JobStatus

__all__ = ["Job", "job_list", "job_load"]

_FIRST_POLL_S = 0.02
_LOG_LINES = 20
_LOGS_SHOWN_MAX = 4

Progress = Callable[[JobStatus], None]


class Job:
    """Hosts from a scheduler, which stay until they are given back.

        job = ProcessJob({"trainers": 2})
        job.apply()
        state = job.state(timeout=60)
        state.trainers.spawn_procs({"gpus": 8})

    `apply` asks for them; a second program that applies the same finds them, and goes on in a
    moment. What is applied is noted in `.mesh/<context>/`, in the current folder.

    Args:
        meshes: How many hosts each mesh has; or their specs, where hosts are not alike.
        backend: The name of the backend.
        name: What the job is called at the scheduler.
        options: What the backend is told.
        ttl_s: How long the hosts stay when no program uses them: nothing outlives its owner's
            intent.
        context: Under what name it is applied; `default` when left out. A named one is found from
            any folder.
        folder: In which folder the state is; the current one when left out.

    Raises:
        ConfigError: A name or a number is not one, or an option cannot be stored.
    """

    def __init__(
        self,
        meshes: Mapping[str, int] | Sequence[MeshSpec] = (),
        *,
        backend: str,
        name: str = "mesh",
        options: Mapping[str, Any] | None = None,
        ttl_s: float = 3600.0,
        context: str | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        if isinstance(meshes, Mapping):
            meshes = [MeshSpec(mesh, hosts) for mesh, hosts in meshes.items()]
        self._spec = JobSpec(name, backend, tuple(meshes), dict(options or {}), ttl_s)
        self._folder = find_folder(context, folder)
        # A job that was loaded is what it is: it is never applied implicitly.
        self._is_declared = True
        self._is_applied = False

    @classmethod
    def of(
        cls,
        spec: JobSpec,
        *,
        context: str | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> Job:
        """Makes a job of a spec, such as that of another.

        Args:
            spec: What is asked for.
            context: Under what name it is applied.
            folder: In which folder the state is.

        Raises:
            ConfigError: The context is none.
        """
        job = object.__new__(Job)
        job._spec = spec
        job._folder = find_folder(context, folder)
        job._is_declared = True
        job._is_applied = False
        return job

    @property
    def spec(self) -> JobSpec:
        """What is asked for."""
        return self._spec

    @property
    def context(self) -> str:
        """Under what name it is applied."""
        return self._folder.context

    @property
    def folder(self) -> str:
        """Where its state is."""
        return str(self._folder.path)

    def add_mesh(
        self,
        name: str,
        hosts: int,
        *,
        cpus: int | None = None,
        memory: str | None = None,
        gpus: int | None = None,
        **options: Any,
    ) -> Self:
        """Asks for one more mesh; before `apply`.

        Raises:
            ConfigError: The name is taken or not one, or a number is not one.
        """
        mesh = MeshSpec(name, hosts, cpus, memory, gpus, options)
        self._spec = replace(self._spec, meshes=(*self._spec.meshes, mesh))
        return self

    def plan(self) -> str:
        """Gives what `apply` would submit, as text; submits nothing."""
        order = Order("0" * 32, self._spec, self._folder.path)
        return self._backend(self._spec).plan(order)

    def apply(self, *, replace: bool = False) -> Self:
        """Asks for the hosts, and returns without waiting for them; nothing when they are there.

        Where the program before this one was killed while it applied, this one finishes that. An
        allocation that has ended is asked for anew. Nothing that runs is ever given back by this,
        but with `replace`.

        Args:
            replace: Give back what is applied under this context when it differs.

        Raises:
            JobMismatch: Something else is applied under this context.
            JobBusy: Another program is changing the job.
            SchedulerUnreachable: The scheduler cannot be asked; nothing was changed.
            JobError: The scheduler refuses; the message has its words.
        """
        if not self._spec.meshes:
            raise ConfigError("the job has no mesh: give one, or call add_mesh")
        with self._folder.locked():
            record = self._folder.read()
            if record is not None:
                record = carry_on(self._folder, record, self._spec)
            if record is not None and (found := differences(record.spec, self._spec)):
                if not replace:
                    raise JobMismatch(self.context, found)
                give_back(self._folder, record)
                record = None
            if record is None:
                begin(self._folder, self._spec)
        self._is_applied = True
        return self

    def state(self, timeout: float | None = None, progress: Progress | None = None) -> JobState:
        """Waits until all hosts are up, and attaches to them.

        A job that was made by its class, and not by `job_load`, is applied first. In one program
        it gives the same meshes again; a host whose worker is another by now is replaced in them.

        Args:
            timeout: For how many seconds to wait; for ever when left out.
            progress: Is called with the status whenever that has changed.

        Raises:
            JobPending: The hosts were not up in time; the message says why. They are still asked
                for.
            JobEnded: The allocation or a host of it has ended; with the last lines of its worker.
            SchedulerUnreachable: The scheduler could not be asked in all that time.
            JobMismatch: Something else is applied under this context.
            JobError: Nothing is applied.
        """
        if self._is_declared and not self._is_applied:
            self.apply()
        record, ticket = self._record()
        backend = self._backend(record.spec)
        report = self._until(
            record, timeout, progress, lambda status: status.is_up or _is_over(status)
        )
        status = self._status(record, report)
        if not status.is_up:
            raise self._ended(record, ticket, report)
        credentials = self._folder.credentials()
        gateway = backend.gateway(ticket)
        return JobState(
            {
                mesh.name: attach_mesh(record.order_id, status.of(mesh.name), credentials, gateway)
                for mesh in record.spec.meshes
            }
        )

    def status(self) -> JobStatus:
        """Says how the job is now, without waiting.

        Raises:
            JobError: Nothing is applied.
            SchedulerUnreachable: The scheduler cannot be asked.
        """
        record, ticket = self._record()
        return self._status(record, self._backend(record.spec).report(ticket))

    def wait(self, timeout: float | None = None, progress: Progress | None = None) -> JobStatus:
        """Waits until the allocation has ended, and says how.

        Args:
            timeout: For how many seconds; for ever when left out.
            progress: Is called with the status whenever that has changed.

        Raises:
            JobPending: It has not ended in time.
            JobError: Nothing is applied.
            SchedulerUnreachable: The scheduler could not be asked in all that time.
        """
        record, _ = self._record()
        report = self._until(record, timeout, progress, _has_ended)
        return self._status(record, report)

    def logs(self, mesh: str, rank: int, lines: int = 100) -> str:
        """Gives the last lines that the worker of a host printed.

        Raises:
            NotSupported: The backend does not keep them.
            JobError: Nothing is applied.
        """
        record, ticket = self._record()
        return self._backend(record.spec).logs(ticket, mesh, rank, lines)

    def events(self) -> list[JobEvent]:
        """Gives what has happened to the job, oldest first.

        Raises:
            JobError: Nothing is applied.
        """
        record, ticket = self._record()
        told = self._backend(record.spec).events(ticket)
        return sorted([*self._folder.events(), *told], key=lambda event: event.at)

    def resize(self, *, mesh: str, hosts: int) -> Self:
        """Changes how many hosts a mesh has; the last ones come or go, the others go on.

        Raises:
            NotSupported: The scheduler cannot do that.
            ConfigError: There is no such mesh, or the number is not one.
            JobBusy: Another program is changing the job.
            JobError: Nothing is applied.
        """
        with self._folder.locked():
            record, _ = self._record()
            record = resize(self._folder, record, record.spec.resized(mesh, hosts))
            self._folder.note("resized", f"to {hosts} hosts", mesh)
        self._spec = record.spec
        return self

    def detach(self) -> None:
        """Stops what this program runs on the hosts, and leaves them to the next."""
        record = self._folder.read()
        if record is not None:
            detach_meshes(record.order_id)

    def kill(self, *, force: bool = False) -> None:
        """Gives the hosts back and forgets the job; nothing when there is none.

        Args:
            force: Forget it also when the scheduler cannot be asked. Workers then end by themselves
                when no program has used them for `ttl_s`.

        Raises:
            JobBusy: Another program is changing the job.
            SchedulerUnreachable: The scheduler cannot be asked: call it again later.
        """
        self._is_applied = False
        if not self._folder.path.exists():
            return
        with self._folder.locked():
            record = self._folder.read()
            if record is not None:
                give_back(self._folder, record, is_forced=force)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{mesh.name}: {mesh.hosts}" for mesh in self._spec.meshes)
        return f"<{type(self).__name__} {self._spec.name!r} of {{{sizes}}}, in {self.folder}>"

    def _backend(self, spec: JobSpec) -> Backend:
        return load_backend(spec.backend, spec.options)

    def _record(self) -> tuple[Record, Ticket]:
        """Gives what is applied, with its ticket."""
        record = self._folder.read()
        if record is None or record.is_ending:
            what = "is being given back" if record else "is not applied"
            raise JobError(f"the job of {self._folder.path} {what}: call apply()")
        if self._is_declared and (found := differences(record.spec, self._spec)):
            raise JobMismatch(self.context, found)
        if record.ticket is None:
            raise JobError(
                f"process {record.owner.get('pid')} on {record.owner.get('host')} is applying the "
                f"job of {self._folder.path}, or was killed while it did: call apply()"
            )
        return record, record.ticket

    def _status(self, record: Record, report: Report) -> JobStatus:
        return JobStatus(
            context=self.context,
            name=record.spec.name,
            backend=record.spec.backend,
            state=report.state,
            reason=report.reason,
            hosts=report.hosts,
            owner=record.owner,
            applied=record.applied,
            folder=self.folder,
            order_id=record.order_id,
        )

    def _until(
        self,
        record: Record,
        timeout: float | None,
        progress: Progress | None,
        is_enough: Callable[[JobStatus], bool],
    ) -> Report:
        """Asks again and again, until it is enough."""
        deadline = None if timeout is None else time.monotonic() + timeout
        backend, pause_s = self._backend(record.spec), _FIRST_POLL_S
        told: JobStatus | None = None
        assert record.ticket is not None
        while True:
            lost: SchedulerUnreachable | None = None
            try:
                status = self._status(record, backend.report(record.ticket))
            except SchedulerUnreachable as error:
                lost = error
            else:
                if progress is not None and status != told:
                    progress(status)
                told = status
                report = Report(status.state, status.reason, status.hosts)
                if is_enough(status):
                    return report
            if deadline is not None and time.monotonic() >= deadline:
                if lost is not None:
                    raise lost
                assert told is not None
                raise _pending(told, timeout)
            left_s = pause_s if deadline is None else max(deadline - time.monotonic(), 0.0)
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, backend.poll_s)

    def _ended(self, record: Record, ticket: Ticket, report: Report) -> JobEnded:
        backend = self._backend(record.spec)
        lost = [host for host in report.hosts if host.state is Phase.ENDED]
        logs: dict[tuple[str, int], str] = {}
        for host in lost[:_LOGS_SHOWN_MAX]:
            try:
                logs[host.mesh, host.rank] = backend.logs(ticket, host.mesh, host.rank, _LOG_LINES)
            except (NotSupported, SchedulerUnreachable):
                continue  # The end itself is the news.
        if report.state is Phase.ENDED:
            what, todo = "the job has ended", "apply it again"
        else:
            named = ", ".join(f"{host.mesh}[{host.rank}]" for host in lost)
            what, todo = f"of the job's hosts {named} ended", "kill the job, and apply it again"
        reason = report.reason or next((host.reason for host in lost if host.reason), "")
        return JobEnded(f"{what}{f' ({reason})' if reason else ''}: {todo}", reason, logs)


def job_load(context: str | None = None, *, folder: str | os.PathLike[str] | None = None) -> Job:
    """Finds a job that is applied, without asking for anything.

    Args:
        context: Its name; `default` when left out.
        folder: In which folder; when left out the current one, or for a name any.

    Raises:
        JobError: None is applied there.
    """
    found = find_folder(context, folder)
    record = found.read()
    if record is None:
        raise JobError(f"no job is applied in {found.path}: apply one first")
    return _loaded(found, record)


def job_list(folder: str | os.PathLike[str] | None = None) -> list[Job]:
    """Gives all jobs that are applied in a folder, and those with a name in any.

    Args:
        folder: The folder; the current one when left out.
    """
    found = ((one, one.read()) for one in applied_folders(folder))
    return [_loaded(one, record) for one, record in found if record is not None]


def _loaded(folder: StateFolder, record: Record) -> Job:
    job = object.__new__(Job)
    job._spec = record.spec
    job._folder = folder
    job._is_declared = False
    job._is_applied = False
    return job


def _has_ended(status: JobStatus) -> bool:
    return status.state is Phase.ENDED


def _is_over(status: JobStatus) -> bool:
    return _has_ended(status) or any(host.state is Phase.ENDED for host in status.hosts)


def _pending(status: JobStatus, timeout: float | None) -> JobPending:
    reason = status.reason or next((host.reason for host in status.hosts if host.reason), "")
    why = f" ({reason})" if reason else ""
    if status.is_up:
        return JobPending(
            f"the job still runs after {timeout:g} s: wait longer, or kill it", reason
        )
    return JobPending(
        f"{status.up} of {len(status.hosts)} hosts are up after {timeout:g} s{why}: wait longer "
        "with state(), or give it back with kill()",
        reason,
    )
