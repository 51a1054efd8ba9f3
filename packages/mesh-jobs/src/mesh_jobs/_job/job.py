"""A job: hosts from a scheduler, applied once and used by many programs, one after another."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

from mesh_core import ConfigError, HostMesh
from mesh_jobs._backend.allocation_request import AllocationRequest
from mesh_jobs._backend.backend import Backend
from mesh_jobs._backend.follower import Follower
from mesh_jobs._backend.registry import load_backend
from mesh_jobs._backend.report import Allocation, HostDraining, JobEvent, Phase, Report
from mesh_jobs._errors import JobError, JobMismatch, NotSupported, SchedulerUnreachable
from mesh_jobs._extensions.daemon_client import ExtensionDaemonClient
from mesh_jobs._extensions.extension import JobExtension
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
from mesh_jobs._job.wait import Progress, ended_error, has_ended, is_up_or_over, wait_for_status
from mesh_jobs._spec import ClientSpec, JobSpec, MeshSpec, differences
from mesh_jobs._state.enclosing_job import check_meshes
from mesh_jobs._state.folder import StateFolder, find_folder
from mesh_jobs._state.record import Record

__all__ = ["Job", "Progress"]

_LINE_LEN = 400


class Job:
    """Hosts from a scheduler, which remain allocated until they are released.

        job = ProcessJob({"trainers": 2})
        job.apply()
        state = job.state(timeout=60)
        state.trainers.spawn_procs({"gpus": 8})

    `apply` requests the hosts. If another program applies the same job, it finds these hosts and
    starts immediately. The state of an applied job is stored in `.mesh/<context>/` in the current
    folder.

    Args:
        meshes: The number of hosts of each mesh by name, or a `MeshSpec` for each mesh.
        backend: The name of the backend.
        name: The name of the job at the scheduler.
        options: Options of the backend for the whole job.
        ttl_s: The time in seconds for which the hosts are kept while no program uses them.
        context: The context under which the job is applied. Defaults to `default`. A named context
            can be found from any folder.
        folder: The folder that contains the state. Defaults to the current folder.

    Raises:
        ConfigError: A name or a number is invalid, or an option cannot be stored.
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
        # A loaded job is already applied, so it is never applied implicitly.
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
        """Create a job from a spec, such as the spec of another job.

        Args:
            spec: The specification of the job.
            context: The context under which the job is applied.
            folder: The folder that contains the state.

        Raises:
            ConfigError: The name of the context is invalid.
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
        """Return the job that is applied in a folder."""
        job = object.__new__(Job)
        job._spec = record.spec
        job._folder = folder
        job._is_declared = False
        job._is_applied = False
        job._open_extensions = OpenExtensions()
        return job

    @property
    def spec(self) -> JobSpec:
        """The specification of the requested job."""
        return self._spec

    @property
    def context(self) -> str:
        """The context under which the job is applied."""
        return self._folder.context

    @property
    def folder(self) -> str:
        """The state folder of the job."""
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
        """Add a mesh to the job; call this before `apply`.

        Raises:
            ConfigError: The name is invalid or used already, or a number is invalid.
        """
        mesh = MeshSpec(name, hosts, cpus, memory, gpus, options)
        self._spec = dataclasses.replace(self._spec, meshes=(*self._spec.meshes, mesh))
        return self

    def add_extensions(self, *extensions: JobExtension) -> Self:
        """Add extensions of other packages, such as files on the hosts; call this before `state`.

        `state` opens the extensions once it has attached to the hosts, and refreshes them on later
        calls. `detach` and `kill` close them, and so does the exit of the program. A later program
        that needs the same extensions must add them to its job as well.

            from mesh_fs import RemoteMount

            job.add_extensions(RemoteMount("project", "/mnt/project"))
            state = job.state()

        Args:
            extensions: The extensions, which are opened in this order.
        """
        for one in extensions:
            self._open_extensions.want(one)
        return self

    def plan(self) -> str:
        """Return what `apply` would submit, as text; submits nothing."""
        request = AllocationRequest("0" * 32, self._spec, self._folder.path)
        return self._backend(self._spec).plan(request)

    def apply(
        self,
        client_script: str | os.PathLike[str] | Sequence[str] | None = None,
        *,
        replace: bool = False,
    ) -> Self:
        """Request the hosts without waiting for them; does nothing if they are allocated already.

        If an earlier program was killed while it applied the job, this call completes that step. If
        the allocation has ended, it is requested again. Running hosts are released only with
        `replace`.

        With a client script, the job is a batch job: the script runs inside the allocation, even
        after this program has exited. A job that the script creates refers to the enclosing job,
        and `state()` returns its hosts. When the script exits, the job ends and all hosts are
        released. `wait().exit_code` is the exit status of the script, and `client_logs()` returns
        its output.

        Args:
            client_script: A Python script to run inside the allocation, or a list of the script and
                its arguments, as on the command line of `python`. Paths are relative to the current
                folder, which must also exist on the hosts.
            replace: Whether to release a different job that is applied under this context.

        Raises:
            NotSupported: The backend does not run client scripts.
            JobMismatch: A different job is applied under this context.
            JobBusy: Another program is changing the job.
            JobPending: The job uses hosts of another owner, who has not created them yet.
            SchedulerUnreachable: The scheduler does not respond; nothing was changed.
            JobError: The scheduler rejects the request; the message contains its reason.
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
                    # The owner of the pods has resized them.
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
        observer: bool = False,
    ) -> JobState:
        """Wait until all hosts are up, and attach to them.

        A job that was created with its class, and not with `job_load`, is applied first. Further
        calls in the same program return the same meshes; hosts whose worker has changed are
        replaced in them. If the job has the option to replace lost hosts, new hosts are requested
        for them first.

        Args:
            timeout: The timeout in seconds. Defaults to no limit.
            progress: A function that is called with the status whenever it changes.
            observer: Whether to attach in an additional session. It neither reserves the hosts nor
                affects the program that uses them, and is meant for inspection.

        Raises:
            JobPending: The hosts were not up before the timeout; the message contains the reason.
                The request remains submitted.
            JobEnded: The allocation or one of its hosts has ended; the error contains the last
                output of the worker.
            SchedulerUnreachable: The scheduler was not reachable until the timeout.
            JobMismatch: A different job is applied under this context.
            JobError: No job is applied.
        """
        if (found := self._attach_from_cache(progress, observer)) is not None:
            return found
        status = self.wait_up(timeout, progress)
        record, allocation = self._record()
        credentials = self._folder.credentials()
        gateway = self._backend(record.spec).gateway(allocation)
        hosts = {mesh.name: status.of(mesh.name) for mesh in record.spec.meshes}
        meshes = {
            name: attach_mesh(
                record.allocation_id, mine, credentials, gateway, is_observer=observer
            )
            for name, mine in hosts.items()
        }
        if not self._folder.is_inside:
            cache_hosts(self._folder, record, meshes, sum(hosts.values(), ()), gateway)
        return self._used(record, meshes)

    def _used(self, record: Record, meshes: Mapping[str, HostMesh]) -> JobState:
        """Provide the hosts to the program, with their extensions."""
        note_used(record.allocation_id, self._folder)
        return JobState(self._open_extensions.used(record.allocation_id, meshes))

    def _attach_from_cache(self, progress: Progress | None, is_observer: bool) -> JobState | None:
        """Attach to the workers that served the previous program, if they still run.

        The scheduler is not queried: a host that has just joined is up.
        """
        record = self._folder.read()
        if (
            record is None
            or record.allocation is None
            or record.is_ending
            or self._folder.is_inside
        ):
            return None
        is_other = self._is_declared and differences(record.spec, self._spec)
        cached = load_cached_hosts(self._folder, record)
        if is_other or record.resizing is not None or cached is None:
            return None
        names = [mesh.name for mesh in record.spec.meshes]
        credentials = self._folder.credentials()
        meshes = attach_cached_hosts(
            record.allocation_id, names, cached, credentials, is_observer=is_observer
        )
        if meshes is None:
            return None
        if progress is not None:
            progress(self._status(record, Report(Phase.RUNNING, hosts=cached.hosts)))
        return self._used(record, meshes)

    def wait_up(self, timeout: float | None = None, progress: Progress | None = None) -> JobStatus:
        """Wait until all hosts are up, as `state` does, without attaching to them.

        Args:
            timeout: The timeout in seconds. Defaults to no limit.
            progress: A function that is called with the status whenever it changes.

        Raises:
            JobError: See `state`.
        """
        if self._is_declared and not self._is_applied:
            self.apply()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            record, allocation = self._record()
            left_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            status = self._wait_for(record, allocation, is_up_or_over, left_s, progress)
            if not status.hosts:
                raise JobError(
                    "the job itself has no hosts: each of its tasks has hosts under a separate "
                    f"context, such as {self.context}-0"
                )
            if status.is_up:
                return status
            if has_ended(status) or not record.spec.options.get("replace_lost"):
                raise ended_error(self._backend(record.spec), allocation, status)
            self._replace_lost_hosts()

    def status(self) -> JobStatus:
        """Return the current status of the job, without waiting.

        Raises:
            JobError: No job is applied.
            SchedulerUnreachable: The scheduler does not respond.
        """
        record, allocation = self._record()
        return self._status(record, self._backend(record.spec).report(allocation))

    def wait(self, timeout: float | None = None, progress: Progress | None = None) -> JobStatus:
        """Wait until the allocation has ended, and return its final status.

        Args:
            timeout: The timeout in seconds. Defaults to no limit.
            progress: A function that is called with the status whenever it changes.

        Raises:
            JobPending: The allocation has not ended before the timeout.
            JobError: No job is applied.
            SchedulerUnreachable: The scheduler was not reachable until the timeout.
        """
        return self._wait_for(*self._record(), has_ended, timeout, progress)

    def logs(self, mesh: str, rank: int, lines: int = 100) -> str:
        """Return the last lines of output of a host's worker.

        Raises:
            NotSupported: The backend does not store this output.
            JobError: No job is applied.
        """
        record, allocation = self._record()
        return self._backend(record.spec).logs(allocation, mesh, rank, lines)

    def client_logs(self, lines: int = 100) -> str:
        """Return the last lines of output of the client script.

        Raises:
            NotSupported: The backend does not store this output.
            JobError: No job is applied.
        """
        output = self.client_output(-lines * _LINE_LEN)
        return "\n".join(output.decode(errors="replace").splitlines()[-lines:])

    def client_output(self, start: int = 0) -> bytes:
        """Return the output of the client script from an offset on, at most 1 MiB of it.

        Args:
            start: The offset of the first byte; a negative one counts from the end.

        Raises:
            NotSupported: The backend does not store this output.
            JobError: No job is applied.
        """
        record, allocation = self._record()
        return self._backend(record.spec).client_output(allocation, start)

    def events(self) -> list[JobEvent]:
        """Return the events of the job, oldest first.

        Raises:
            JobError: No job is applied.
        """
        record, allocation = self._record()
        with suppress(SchedulerUnreachable):
            self.status()  # A status query records lost hosts as events.
        reported = self._backend(record.spec).events(allocation)
        return sorted([*self._folder.events(), *reported], key=lambda event: event.at)

    def control_gateway(self) -> str | None:
        """Return the address of a control service that forwards requests to the other hosts.

        The result is None if each host is reached directly, at `HostReport.control`.

        Raises:
            JobError: No job is applied.
        """
        record, allocation = self._record()
        return self._backend(record.spec).control_gateway(allocation)

    def remaining(self) -> float | None:
        """Return the time in seconds until the scheduler ends the job; None without a limit.

        Raises:
            JobError: No job is applied.
            SchedulerUnreachable: The scheduler does not respond.
        """
        return self.status().remaining_s

    def leaving(self) -> list[HostDraining]:
        """Return the hosts that are about to be reclaimed, if the scheduler announces this.

        Raises:
            JobError: No job is applied.
            SchedulerUnreachable: The scheduler does not respond.
        """
        record, allocation = self._record()
        # The scheduler is queried last. It knows the reason before it signals a worker to exit, so
        # it has the reason for every worker that reports here that it exits.
        here = leaving_here(record.allocation_id)
        found = list(self._backend(record.spec).leaving(allocation))
        self._record()  # Hosts that the job itself has started to release are not reclaimed.
        known = {(one.place, one.epoch) for one in found}
        return [*found, *(one for one in here if (one.place, one.epoch) not in known)]

    def on_leaving(
        self, tell: Callable[[HostDraining], object], *, poll_s: float = 5.0
    ) -> LeavingWatch:
        """Call a function once for each host that is about to be reclaimed, in a separate thread.

            with job.on_leaving(lambda host: save.set()):
                train()

        Args:
            tell: A function that is called with the host, which includes the reason and the
                remaining time.
            poll_s: The poll interval in seconds if the scheduler does not report changes.
        """
        return LeavingWatch(self.leaving, tell, poll_s, self._follow, self._leaving_here)

    def _leaving_here(self) -> list[HostDraining]:
        """Return the hosts whose workers report that they are shutting down."""
        record, _ = self._record()
        return leaving_here(record.allocation_id)

    @contextmanager
    def _follow(self) -> Iterator[Follower]:
        """Follow the applied allocation.

        Raises:
            JobError: No job is applied.
            SchedulerUnreachable: The scheduler does not respond.
        """
        record, allocation = self._record()
        with self._backend(record.spec).follow(allocation) as follower:
            yield follower

    def resize(self, *, mesh: str, hosts: int) -> Self:
        """Change the number of hosts of a mesh; hosts are added or removed at its end.

        The remaining hosts continue to run.

        Raises:
            NotSupported: The scheduler does not support this.
            ConfigError: No mesh has this name, or the number is invalid.
            JobBusy: Another program is changing the job.
            JobError: No job is applied.
        """
        with self._folder.locked():
            record, _ = self._record()
            record = resize_allocation(self._folder, record, record.spec.resized(mesh, hosts))
            self._folder.note("resized", f"to {hosts} hosts", mesh)
        self._spec = record.spec
        return self

    def detach(self) -> None:
        """Stop the processes of this program on the hosts; the next program can use the hosts."""
        self._open_extensions.close()
        record = self._folder.read()
        if record is not None:
            detach_meshes(record.allocation_id)

    def kill(self, *, force: bool = False) -> None:
        """Release the hosts and remove the state of the job; does nothing if no job is applied.

        In the client script of the job, this only detaches from the hosts; they are released when
        the script exits.

        Args:
            force: Whether to remove the state even if the scheduler does not respond. The workers
                then exit once no program has used them for `ttl_s`.

        Raises:
            JobBusy: Another program is changing the job.
            SchedulerUnreachable: The scheduler does not respond; call `kill` again later.
        """
        self._is_applied = False
        self._open_extensions.close()
        if self._folder.is_inside:
            self.detach()
            return
        if not self._folder.path.exists():
            self._folder.remove_empty_parent()
            return
        ExtensionDaemonClient(self._folder).end()
        with self._folder.locked():
            record = self._folder.read()
            if record is not None:
                release_allocation(self._folder, record, is_forced=force)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{mesh.name}: {mesh.hosts}" for mesh in self._spec.meshes)
        return f"<{type(self).__name__} {self._spec.name!r} of {{{sizes}}}, in {self.folder}>"

    def _repr_html_(self) -> str:
        """Return the meshes as a table, for notebooks; `status()` queries the scheduler."""
        # Only notebooks need it.
        from mesh_core.spi import html_table  # noqa: PLC0415

        title = f"{type(self).__name__} {self._spec.name!r}, in {self.folder}"
        rows = [(mesh.name, str(mesh.hosts)) for mesh in self._spec.meshes]
        return html_table(title, ("mesh", "hosts"), rows)

    def _backend(self, spec: JobSpec) -> Backend:
        return load_backend(spec.backend, spec.options)

    def _record(self) -> tuple[Record, Allocation]:
        """Return the record of the applied job, and its allocation."""
        record = self._folder.read()
        if record is None or record.is_ending:
            what = "is being released" if record else "is not applied"
            raise JobError(f"the job of {self._folder.path} {what}: call apply()")
        if self._folder.is_inside:
            check_meshes(self.context, record.spec, self._spec)
            return record, record.allocation or self._found(record)
        # A job without declared meshes attaches to the meshes of others, so there is nothing to
        # compare.
        must_match = self._is_declared and bool(self._spec.meshes)
        if must_match and (found := differences(record.spec, self._spec)):
            raise JobMismatch(self.context, found)
        if record.allocation is None:
            raise JobError(
                f"process {record.owner.get('pid')} on {record.owner.get('host')} is applying the "
                f"job of {self._folder.path}, or was killed while doing so: call apply()"
            )
        return record, record.allocation

    def _wait_for(
        self,
        record: Record,
        allocation: Allocation,
        condition: Callable[[JobStatus], bool],
        timeout: float | None,
        progress: Progress | None,
    ) -> JobStatus:
        backend = self._backend(record.spec)
        return wait_for_status(
            backend,
            allocation,
            lambda report: self._status(record, report),
            condition,
            timeout=timeout,
            progress=progress,
        )

    def _replace_lost_hosts(self) -> None:
        """Request new hosts for the lost ones."""
        with self._folder.locked():
            record, _ = self._record()
            resize_allocation(self._folder, record, record.spec)
            self._folder.note("resized", "lost hosts are requested again")

    def _found(self, record: Record) -> Allocation:
        """Return the allocation of the enclosing job, which its record may not contain yet."""
        request = AllocationRequest(
            record.allocation_id, record.spec, self._folder.path, self._folder.credentials()
        )
        allocation = self._backend(record.spec).find(request)
        if allocation is None:
            raise JobError(f"the scheduler does not know the job of {self._folder.path}")
        return allocation

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
            allocation_id=record.allocation_id,
            exit_code=report.exit_code,
            remaining_s=report.remaining_s,
        )
