"""A backend whose only host is the program's own machine, without a worker."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable

from mesh_jobs._backend.allocation_request import AllocationRequest
from mesh_jobs._backend.backend import Backend
from mesh_jobs._backend.report import THIS_HOST, Allocation, HostReport, Phase, Report
from mesh_jobs._client.process import (
    client_argv,
    client_log,
    client_output,
    client_status,
    end_client,
    running_client,
    start_client,
)
from mesh_jobs._errors import JobError
from mesh_jobs._job.job import Job

__all__ = ["LocalBackend", "LocalJob"]

_CLIENT_OPTIONS = ("--grace", "5")


class LocalJob(Job):
    """A job whose meshes are all the machine that runs the program.

        hosts = LocalJob().state().hosts

    Args:
        hosts: The names of the meshes; each is `this_host()`.
        name: The name of the job.
        context: The context under which the job is applied.
        folder: The folder that contains the state. Defaults to the current folder.
    """

    def __init__(
        self,
        hosts: Iterable[str] = ("hosts",),
        *,
        name: str = "mesh",
        context: str | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(
            dict.fromkeys(hosts, 1), backend="local", name=name, context=context, folder=folder
        )


class LocalBackend(Backend):
    """Backend for the local machine, which starts no process except a client script."""

    poll_s = 0.1
    runs_clients = True

    def plan(self, request: AllocationRequest) -> str:
        """Return the names of the meshes, and the command of the client script, if there is one."""
        lines = [f"{mesh.name}: this machine" for mesh in request.spec.meshes]
        if request.spec.client is not None:
            lines.append(shlex.join(client_argv(request, more=_CLIENT_OPTIONS)))
        return "\n".join(lines) + "\n"

    def allocate(self, request: AllocationRequest) -> Allocation:
        """Start the client script, if there is one."""
        meshes = [mesh.name for mesh in request.spec.meshes]
        if request.spec.client is None:
            return {"meshes": meshes}
        try:
            start_client(request, {}, _CLIENT_OPTIONS)
        except OSError as error:
            raise JobError(f"the client cannot be started: {error}: see plan()") from error
        return {"meshes": meshes, "id": request.id, "folder": str(request.folder)}

    def report(self, allocation: Allocation) -> Report:
        """Report all hosts as up until the client script has ended."""
        if "id" not in allocation:
            return Report(Phase.RUNNING, hosts=_hosts(allocation, Phase.RUNNING))
        is_running = running_client(allocation["id"]) is not None
        client = client_status(allocation["folder"])
        status = None if client is None else client.status
        if is_running:
            return Report(Phase.RUNNING, "", _hosts(allocation, Phase.RUNNING), status)
        how = "was killed" if status is None else f"has ended with status {status}"
        hosts = _hosts(allocation, Phase.ENDED)
        return Report(Phase.ENDED, f"the client script {how}", hosts, status)

    def release(self, allocation: Allocation) -> None:
        """Terminate the client script; processes of a program on its own machine end with it."""
        if "id" in allocation:
            end_client(allocation["id"])

    def client_output(self, allocation: Allocation, start: int) -> bytes:
        """Read the log of the client script."""
        return (
            client_output(client_log(allocation["folder"]), start)
            if "folder" in allocation
            else b""
        )


def _hosts(allocation: Allocation, state: Phase) -> tuple[HostReport, ...]:
    address = THIS_HOST if state is Phase.RUNNING else None
    return tuple(HostReport(mesh, 0, state, address) for mesh in allocation["meshes"])
