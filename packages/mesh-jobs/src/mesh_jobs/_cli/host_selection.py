"""The hosts that a command is for, attached to."""

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
    job: Job, timeout: float | None, *, is_quiet: bool = False, is_beside: bool = True
) -> Iterator[JobState]:
    """Waits for the hosts of a job and attaches to them; leaves them to the next afterwards.

    Args:
        job: The job.
        timeout: For how many seconds to wait; for ever when there is none.
        is_quiet: Whether to show nothing while it waits.
        is_beside: Whether to be served beside the program that uses the hosts.
    """
    limit = nullcontext() if timeout is None else configured(attach_timeout_s=timeout)
    with shown_progress(is_quiet) as progress, limit:
        state = job.state(timeout, progress, beside=is_beside)
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
            f"the hosts of mesh {name!r} cannot be used: {error.reason}: see mesh status and "
            "mesh logs; where another program has them, wait for it to end"
        ) from error


@contextmanager
def chosen_hosts(
    context: str | None,
    mesh: str | None,
    host: int | None,
    timeout: float | None,
    *,
    is_quiet: bool = False,
    is_beside: bool = True,
) -> Iterator[tuple[str, HostMesh]]:
    """Attaches to one mesh of an applied job, or to one host of it; gives its name too.

    Raises:
        JobError: There is no such mesh or host, or there are several and none is named.
    """
    job = job_load(context)
    name = chosen_mesh(job, mesh)
    size = job.spec.mesh(name).hosts
    if host is not None and not 0 <= host < size:
        raise JobError(f"mesh {name!r} has no host {host}: give 0 to {size - 1}")
    with attached(job, timeout, is_quiet=is_quiet, is_beside=is_beside) as state:
        found = state[name]
        if host is not None and len(found.extent):
            found = found.flatten("hosts").slice(hosts=host)
        yield name, found


def chosen_mesh(job: Job, mesh: str | None) -> str:
    """Gives the name of the mesh that is meant.

    Raises:
        ConfigError: There is no such mesh.
        JobError: There are several, and none is named.
    """
    if mesh is not None:
        return job.spec.mesh(mesh).name
    names = [one.name for one in job.spec.meshes]
    if len(names) > 1:
        raise JobError(f"the job has the meshes {', '.join(names)}: say which with --mesh")
    return names[0]
