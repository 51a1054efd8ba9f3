"""A job: hosts from a scheduler, applied once and used by program after program."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

from mesh_core import ConfigError, HostMesh
from mesh_jobs._backend.backend import Backend
from mesh_jobs._backend.follower import Follower
from mesh_jobs._backend.order import Order
from mesh_jobs._backend.registry import load_backend
from mesh_jobs._backend.report import HostLeaving, JobEvent, Phase, Report, Ticket
from mesh_jobs._errors import JobError, JobMismatch, NotSupported, SchedulerUnreachable
from mesh_jobs._extensions.daemon_client import ExtensionDaemonClient
from mesh_jobs._extensions.extension import Equipment
from mesh_jobs._extensions.open_extensions import OpenExtensions
from mesh_jobs._job.allocation import (
    recover_allocation,
    release_allocation,
    resize_allocation,
    start_allocation,
)
from mesh_jobs._job.eviction_watch import LeavingWatch
from mesh_jobs._job.host_cache import cache_hosts, load_cached_hosts
from mesh_jobs._job.lost_hosts import record_lost_hosts
from mesh_jobs._job.state import (
    JobState,
    attach_cached_hosts,
    attach_mesh,
    detach_meshes,
    leaving_here,
)
from mesh_jobs._job.status import JobStatus
from mesh_jobs._job.telemetry_table import note_used
from mesh_jobs._job.wait import Progress, ended, has_ended, is_up_or_over, watch
from mesh_jobs._spec import ClientSpec, JobSpec, MeshSpec, differences
from mesh_jobs._state.enclosing_job import check_meshes
from mesh_jobs._state.folder import StateFolder, find_folder
from mesh_jobs._state.record import Record

__all__ = ["Job", "Progress"]

_LINE_LEN = 400


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
        self._open_extensions = OpenExtensions()

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
        job._open_extensions = OpenExtensions()
        return job

    @classmethod
    def _loaded(cls, folder: StateFolder, record: Record) -> Job:
        """Gives the job that is applied in a folder."""
        job = object.__new__(Job)
        job._spec = record.spec
        job._folder = folder
        job._is_declared = False
        job._is_applied = False
        job._open_extensions = OpenExtensions()
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
        self._spec = dataclasses.replace(self._spec, meshes=(*self._spec.meshes, mesh))
        return self

    def equip(self, *equipment: Equipment) -> Self:
        """Gives the hosts what other packages have for them, such as files; before `state`.

        It is opened when `state` has attached to the hosts, refreshed when it is asked again, and
        closed by `detach` and `kill`, and with the program at the latest. What the next program is
        to find as well, it equips its job with too.

            from mesh_fs import RemoteMount

            job.equip(RemoteMount("project", "/mnt/project"))
            state = job.state()

        Args:
            equipment: What they are to have, in this order.
        """
        for one in equipment:
            self._open_extensions.want(one)
        return self

    def plan(self) -> str:
        """Gives what `apply` would submit, as text; submits nothing."""
        order = Order("0" * 32, self._spec, self._folder.path)
        return self._backend(self._spec).plan(order)

    def apply(
        self,
        client_script: str | os.PathLike[str] | Sequence[str] | None = None,
        *,
        replace: bool = False,
    ) -> Self:
        """Asks for the hosts, and returns without waiting for them; nothing when they are there.

        Where the program before this one was killed while it applied, this one finishes that. An
        allocation that has ended is asked for anew. Nothing that runs is ever given back by this,
        but with `replace`.

        With a client script the job is a batch job: the script runs inside the allocation, also
        when this program has ended. A job that it makes there is the one around it: `state()` gives
        its hosts. The job ends with the script and gives all back; `wait().exit_code` is the
        script's, and `client_logs()` what it has printed.

        Args:
            client_script: A Python script to run inside; a list for one with arguments, as
                `python` takes them. Paths are seen from the current folder, which has to be there
                for the hosts as well.
            replace: Give back what is applied under this context when it differs.

        Raises:
            NotSupported: The backend runs no client scripts.
            JobMismatch: Something else is applied under this context.
            JobBusy: Another program is changing the job.
            JobPending: The hosts are somebody else's, who has not made them yet.
            SchedulerUnreachable: The scheduler cannot be asked; nothing was changed.
            JobError: The scheduler refuses; the message has its words.
        """
        attachment = self._backend(self._spec).attachment(self._spec)
        if attachment is not None:
            self._spec = dataclasses.replace(self._spec, meshes=attachment.meshes)
        if not self._spec.meshes:
            raise ConfigError("the job has no mesh: give one, or call add_mesh")
        if self._folder.is_inside:
            self._record()
            return self
        if client_script is not None:
            self._spec = self._with_client(client_script)
        with self._folder.locked():
            record = self._folder.read()
            if record is not None:
                record = recover_allocation(self._folder, record, self._spec)
            if record is not None and (found := differences(record.spec, self._spec)):
                if attachment is not None and all(path.endswith(".hosts") for path, *_ in found):
                    # The owner of the pods resizes them.
                    record = resize_allocation(self._folder, record, self._spec)
                elif not replace:
                    raise JobMismatch(self.context, found)
                else:
                    release_allocation(self._folder, record)
                    record = None
            if record is None:
                credentials = None if attachment is None else attachment.credentials
                start_allocation(self._folder, self._spec, credentials)
        self._is_applied = True
        return self

    def state(
        self,
        timeout: float | None = None,
        progress: Progress | None = None,
        *,
        beside: bool = False,
    ) -> JobState:
        """Waits until all hosts are up, and attaches to them.

        A job that was made by its class, and not by `job_load`, is applied first. In one program
        it gives the same meshes again; a host whose worker is another by now is replaced in them.

        A job that replaces lost hosts asks for new ones in their places first.

        Args:
            timeout: For how many seconds to wait; for ever when left out.
            progress: Is called with the status whenever that has changed.
            beside: Whether to be served beside the program that uses the hosts, which they are as
                free or taken for as before: to look into them.

        Raises:
            JobPending: The hosts were not up in time; the message says why. They are still asked
                for.
            JobEnded: The allocation or a host of it has ended; with the last lines of its worker.
            SchedulerUnreachable: The scheduler could not be asked in all that time.
            JobMismatch: Something else is applied under this context.
            JobError: Nothing is applied.
        """
        if (found := self._attach_from_cache(progress, beside)) is not None:
            return found
        status = self.wait_up(timeout, progress)
        record, ticket = self._record()
        credentials = self._folder.credentials()
        gateway = self._backend(record.spec).gateway(ticket)
        hosts = {mesh.name: status.of(mesh.name) for mesh in record.spec.meshes}
        meshes = {
            name: attach_mesh(record.order_id, mine, credentials, gateway, is_beside=beside)
            for name, mine in hosts.items()
        }
        if not self._folder.is_inside:
            cache_hosts(self._folder, record, meshes, sum(hosts.values(), ()), gateway)
        return self._used(record, meshes)

    def _used(self, record: Record, meshes: Mapping[str, HostMesh]) -> JobState:
        """Gives hosts to the program, with what they are equipped with."""
        note_used(record.order_id, self._folder)
        return JobState(self._open_extensions.used(record.order_id, meshes))

    def _attach_from_cache(self, progress: Progress | None, is_beside: bool) -> JobState | None:
        """Attach to the workers that served the previous program, if they are still there.

        This needs no query to the scheduler: a host that has just joined is up.
        """
        record = self._folder.read()
        if record is None or record.ticket is None or record.is_ending or self._folder.is_inside:
            return None
        is_other = self._is_declared and differences(record.spec, self._spec)
        cached = load_cached_hosts(self._folder, record)
        if is_other or record.resizing is not None or cached is None:
            return None
        names = [mesh.name for mesh in record.spec.meshes]
        credentials = self._folder.credentials()
        meshes = attach_cached_hosts(
            record.order_id, names, cached, credentials, is_beside=is_beside
        )
        if meshes is None:
            return None
        if progress is not None:
            progress(self._status(record, Report(Phase.RUNNING, hosts=cached.hosts)))
        return self._used(record, meshes)

    def wait_up(self, timeout: float | None = None, progress: Progress | None = None) -> JobStatus:
        """Waits until all hosts are up, as `state` does, and does not attach to them.

        Args:
            timeout: For how many seconds to wait; for ever when left out.
            progress: Is called with the status whenever that has changed.

        Raises:
            JobError: As with `state`.
        """
        if self._is_declared and not self._is_applied:
            self.apply()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            record, ticket = self._record()
            left_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            status = self._watched(record, ticket, is_up_or_over, left_s, progress)
            if not status.hosts:
                raise JobError(
                    "the job has no hosts of its own: its tasks have, each under a context of its "
                    f"own such as {self.context}-0"
                )
            if status.is_up:
                return status
            if has_ended(status) or not record.spec.options.get("replace_lost"):
                raise ended(self._backend(record.spec), ticket, status)
            self._bring_back()

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
        return self._watched(*self._record(), has_ended, timeout, progress)

    def logs(self, mesh: str, rank: int, lines: int = 100) -> str:
        """Gives the last lines that the worker of a host printed.

        Raises:
            NotSupported: The backend does not keep them.
            JobError: Nothing is applied.
        """
        record, ticket = self._record()
        return self._backend(record.spec).logs(ticket, mesh, rank, lines)

    def client_logs(self, lines: int = 100) -> str:
        """Gives the last lines that the client script has printed.

        Raises:
            NotSupported: The backend does not keep them.
            JobError: Nothing is applied.
        """
        output = self.client_output(-lines * _LINE_LEN)
        return "\n".join(output.decode(errors="replace").splitlines()[-lines:])

    def client_output(self, start: int = 0) -> bytes:
        """Gives what the client script has printed from a byte on, a mebibyte of it at most.

        Args:
            start: The first byte; counted from the end when negative.

        Raises:
            NotSupported: The backend does not keep it.
            JobError: Nothing is applied.
        """
        record, ticket = self._record()
        return self._backend(record.spec).client_output(ticket, start)

    def events(self) -> list[JobEvent]:
        """Gives what has happened to the job, oldest first.

        Raises:
            JobError: Nothing is applied.
        """
        record, ticket = self._record()
        with suppress(SchedulerUnreachable):
            self.status()  # Lost hosts are noted by whoever looks.
        told = self._backend(record.spec).events(ticket)
        return sorted([*self._folder.events(), *told], key=lambda event: event.at)

    def control_gateway(self) -> str | None:
        """Gives where a control service listens that reaches those of the other hosts.

        It is None where they are reached as they are, at `HostReport.control`.

        Raises:
            JobError: Nothing is applied.
        """
        record, ticket = self._record()
        return self._backend(record.spec).control_gateway(ticket)

    def remaining(self) -> float | None:
        """Gives after how many seconds the scheduler ends the job; None where it does not.

        Raises:
            JobError: Nothing is applied.
            SchedulerUnreachable: The scheduler cannot be asked.
        """
        return self.status().remaining_s

    def leaving(self) -> list[HostLeaving]:
        """Gives the hosts that the scheduler is about to take, as far as it says so before.

        Raises:
            JobError: Nothing is applied.
            SchedulerUnreachable: The scheduler cannot be asked.
        """
        record, ticket = self._record()
        found = list(self._backend(record.spec).leaving(ticket))
        known = {(one.place, one.epoch) for one in found}
        here = leaving_here(record.order_id)
        return [*found, *(one for one in here if (one.place, one.epoch) not in known)]

    def on_leaving(
        self, tell: Callable[[HostLeaving], object], *, poll_s: float = 5.0
    ) -> LeavingWatch:
        """Calls a function once for each host that is about to go, in a thread of its own.

            with job.on_leaving(lambda host: save.set()):
                train()

        Args:
            tell: Is called with the host, the reason, and how many seconds are left.
            poll_s: How often to look where the scheduler does not tell of changes.
        """
        return LeavingWatch(self.leaving, tell, poll_s, self._follow, self._leaving_here)

    def _leaving_here(self) -> list[HostLeaving]:
        """Returns the hosts of which their workers say that they are leaving."""
        record, _ = self._record()
        return leaving_here(record.order_id)

    @contextmanager
    def _follow(self) -> Iterator[Follower]:
        """Follows what is applied now.

        Raises:
            JobError: Nothing is applied.
            SchedulerUnreachable: The scheduler cannot be asked.
        """
        record, ticket = self._record()
        with self._backend(record.spec).follow(ticket) as follower:
            yield follower

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
            record = resize_allocation(self._folder, record, record.spec.resized(mesh, hosts))
            self._folder.note("resized", f"to {hosts} hosts", mesh)
        self._spec = record.spec
        return self

    def detach(self) -> None:
        """Stops what this program runs on the hosts, and leaves them to the next."""
        self._open_extensions.close()
        record = self._folder.read()
        if record is not None:
            detach_meshes(record.order_id)

    def kill(self, *, force: bool = False) -> None:
        """Gives the hosts back and forgets the job; nothing when there is none.

        In the client script of the job it only leaves the hosts: they go when the script ends.

        Args:
            force: Forget it also when the scheduler cannot be asked. Workers then end by themselves
                when no program has used them for `ttl_s`.

        Raises:
            JobBusy: Another program is changing the job.
            SchedulerUnreachable: The scheduler cannot be asked: call it again later.
        """
        self._is_applied = False
        self._open_extensions.close()
        if self._folder.is_inside:
            self.detach()
            return
        if not self._folder.path.exists():
            return
        ExtensionDaemonClient(self._folder).end()
        with self._folder.locked():
            record = self._folder.read()
            if record is not None:
                release_allocation(self._folder, record, is_forced=force)

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
        if self._folder.is_inside:
            check_meshes(self.context, record.spec, self._spec)
            return record, record.ticket or self._found(record)
        # Whoever attaches to what others declare says nothing of its meshes.
        is_told = self._is_declared and bool(self._spec.meshes)
        if is_told and (found := differences(record.spec, self._spec)):
            raise JobMismatch(self.context, found)
        if record.ticket is None:
            raise JobError(
                f"process {record.owner.get('pid')} on {record.owner.get('host')} is applying the "
                f"job of {self._folder.path}, or was killed while it did: call apply()"
            )
        return record, record.ticket

    def _watched(
        self,
        record: Record,
        ticket: Ticket,
        is_enough: Callable[[JobStatus], bool],
        timeout: float | None,
        progress: Progress | None,
    ) -> JobStatus:
        backend = self._backend(record.spec)
        return watch(
            backend,
            ticket,
            lambda report: self._status(record, report),
            is_enough,
            timeout=timeout,
            progress=progress,
        )

    def _bring_back(self) -> None:
        """Asks for hosts in the places of those that are lost."""
        with self._folder.locked():
            record, _ = self._record()
            resize_allocation(self._folder, record, record.spec)
            self._folder.note("resized", "lost hosts are asked for anew")

    def _found(self, record: Record) -> Ticket:
        """Gives the ticket of the job around us, which who has applied it may not have noted."""
        order = Order(record.order_id, record.spec, self._folder.path, self._folder.credentials())
        ticket = self._backend(record.spec).find(order)
        if ticket is None:
            raise JobError(f"the scheduler does not know the job of {self._folder.path}")
        return ticket

    def _with_client(self, script: str | os.PathLike[str] | Sequence[str]) -> JobSpec:
        words = [script] if isinstance(script, str | os.PathLike) else script
        argv = tuple(os.fspath(word) for word in words)
        if not type(self._backend(self._spec)).runs_clients:
            raise NotSupported(
                f"backend {self._spec.backend!r} runs no client scripts: run {argv[0]!r} here, and "
                "have it attach with job.state()"
            )
        return dataclasses.replace(self._spec, client=ClientSpec(argv, os.getcwd()))

    def _status(self, record: Record, report: Report) -> JobStatus:
        record_lost_hosts(self._folder, report)
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
            exit_code=report.exit_code,
            remaining_s=report.remaining_s,
        )
