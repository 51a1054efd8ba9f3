"""Calls of control services by commands, with one-line errors for unmet requirements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mesh_jobs._errors import JobError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mesh_jobs._backend.report import HostReport
    from mesh_jobs._control.client import ControlClient
    from mesh_jobs._control.host_clients import Access, HostAnswer
    from mesh_jobs._job.job import Job

__all__ = ["access", "call_hosts", "chosen_reports", "error_lines", "is_control_here"]

_INSTALL = "pip install 'torchmesh-jobs[cli]'"


def is_control_here() -> bool:
    """Return whether grpcio is installed on this machine."""
    return _load_access() is not None


def chosen_reports(
    job: Job, mesh: str | None, host: int | None, *, is_one: bool = False
) -> list[HostReport]:
    """Return the hosts that a command applies to.

    Args:
        job: The job of the hosts.
        mesh: The name of the mesh. Defaults to all meshes.
        host: The rank of a host in the mesh. Defaults to all hosts.
        is_one: Whether exactly one host must be selected.

    Raises:
        ConfigError: No mesh has this name.
        JobError: The host does not exist, or the selection is ambiguous.
    """
    names = [job.spec.mesh(mesh).name] if mesh else [one.name for one in job.spec.meshes]
    if host is not None:
        if len(names) > 1:
            raise JobError(f"the job has the meshes {', '.join(names)}: choose one with --mesh")
        size = job.spec.mesh(names[0]).hosts
        if not 0 <= host < size:
            raise JobError(f"mesh {names[0]!r} has no host {host}: give 0 to {size - 1}")
    found = [
        one
        for one in job.status().hosts
        if one.mesh in names and (host is None or one.rank == host)
    ]
    if is_one and len(found) > 1:
        raise JobError(f"the job has {len(found)} hosts: give the host of the process")
    return sorted(found, key=lambda one: (names.index(one.mesh), one.rank))


def call_hosts(
    job: Job, hosts: Sequence[HostReport], call: Callable[[ControlClient], Any]
) -> list[HostAnswer]:
    """Call the control services of several hosts of a job.

    Raises:
        JobError: grpcio is not installed on this machine.
    """
    return access(job).call(hosts, call)


def access(job: Job) -> Access:
    """Return the access to the control services of a job's hosts.

    Raises:
        JobError: grpcio is not installed on this machine.
    """
    loaded = _load_access()
    if loaded is None:
        raise JobError(f"the command needs grpcio: {_INSTALL}")
    return loaded(job.folder, job.control_gateway())


def _load_access() -> type[Access] | None:
    """Return the class that calls control services; None if grpcio is not installed."""
    try:
        # The import is here because most commands do not need grpcio, an optional dependency whose
        # import takes 60 ms.
        from mesh_jobs._control.host_clients import Access  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("mesh_jobs"):
            raise
        return None
    return Access


def error_lines(answers: Sequence[HostAnswer]) -> list[str]:
    """Return why hosts have not responded, with one message for all hosts with the same error."""
    by_message: dict[str, list[str]] = {}
    for one in answers:
        if one.error is not None:
            by_message.setdefault(str(one.error), []).append(one.where)
    return [f"{', '.join(wheres)}: {message}" for message, wheres in by_message.items()]
