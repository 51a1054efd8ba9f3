"""Selection of the hosts that a command applies to, and attachment to them."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from mesh_core import HostDied, configured, shutdown_context
from mesh_jobs._cli.progress import shown_progress
from mesh_jobs._errors import JobError
from mesh_jobs._job.job import Job
from mesh_jobs._job.lookup import job_load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import HostMesh
    from mesh_jobs._job.state import JobState

__all__ = ["attached", "chosen_hosts", "chosen_mesh"]

_END_S = 15.0


@contextmanager
def attached(
    job: Job, timeout: float | None, *, is_quiet: bool = False, is_observer: bool = True
) -> Iterator[JobState]:
    """Attach to the hosts of a job inside the context, and detach from them afterwards.

    Args:
        job: The job.
        timeout: The timeout in seconds for waiting for hosts; None waits without a limit.
        is_quiet: Whether to show no progress.
        is_observer: Whether to attach in an additional session, next to the program that uses the
            hosts.
    """
    limit = nullcontext() if timeout is None else configured(attach_timeout_s=timeout)
    with shown_progress(is_quiet) as progress, limit:
        state = job.state(timeout, progress, observer=is_observer)
    try:
        for mesh in state:
            _take(mesh, state[mesh])
        yield state
    finally:
        job.detach()
        shutdown_context().get(timeout=_END_S)


def _take(name: str, mesh: HostMesh) -> None:
    try:
        mesh.initialized.get()
    except HostDied as error:
        raise JobError(
            f"the hosts of mesh {name!r} cannot be used: {error.reason}: see mesh status and mesh "
            "logs; if another program uses them, wait until it ends"
        ) from error


@contextmanager
def chosen_hosts(
    context: str | None,
    mesh: str | None,
    host: int | None,
    timeout: float | None,
    *,
    is_quiet: bool = False,
    is_observer: bool = True,
) -> Iterator[tuple[str, HostMesh]]:
    """Attach to a mesh of an applied job, or to one of its hosts; yield it with its name.

    Raises:
        JobError: The mesh or the host does not exist, or the selection is ambiguous.
    """
    job = job_load(context)
    name = chosen_mesh(job, mesh)
    size = job.spec.mesh(name).hosts
    if host is not None and not 0 <= host < size:
        raise JobError(f"mesh {name!r} has no host {host}: give 0 to {size - 1}")
    with attached(job, timeout, is_quiet=is_quiet, is_observer=is_observer) as state:
        found = state[name]
        if host is not None and len(found.extent):
            found = found.flatten("hosts").slice(hosts=host)
        yield name, found


def chosen_mesh(job: Job, mesh: str | None) -> str:
    """Return the name of the selected mesh.

    Raises:
        ConfigError: No mesh has this name.
        JobError: The job has several meshes, and none is selected.
    """
    if mesh is not None:
        return job.spec.mesh(mesh).name
    names = [one.name for one in job.spec.meshes]
    if len(names) > 1:
        raise JobError(f"the job has the meshes {', '.join(names)}: choose one with --mesh")
    return names[0]
