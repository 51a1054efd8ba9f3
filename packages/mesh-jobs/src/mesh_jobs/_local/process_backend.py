"""A backend whose hosts are processes of this machine, for development and tests."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mesh_jobs._atomic_files import read_json
from mesh_jobs._backend.allocation_request import AllocationRequest, WorkerCommand
from mesh_jobs._backend.backend import Backend
from mesh_jobs._backend.log_tail import tail
from mesh_jobs._backend.report import Allocation, HostReport, Phase, Report
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
from mesh_jobs._spec import MeshSpec
from mesh_jobs._worker.local_workers import all_workers, end_workers, running_workers, start_worker

__all__ = ["ProcessBackend", "ProcessJob"]

_STARTING = "its worker has not reported yet"
# The runner kills the script before `end_client` would kill the runner.
_CLIENT_OPTIONS = ("--ends-workers", "--grace", "5")


class ProcessJob(Job):
    """A job whose hosts are processes of this machine; they outlive the program.

        job = ProcessJob({"trainers": 2})
        hosts = job.state(timeout=60).trainers

    Args:
        meshes: The number of hosts of each mesh by name, or a `MeshSpec` for each mesh.
        env: Additional environment variables of the workers.
        name: The name of the job.
        ttl_s: The time in seconds for which the hosts are kept while no program uses them.
        context: The context under which the job is applied.
        folder: The folder that contains the state. Defaults to the current folder.
    """

    def __init__(
        self,
        meshes: Mapping[str, int] | Sequence[MeshSpec] = (),
        env: Mapping[str, str] | None = None,
        *,
        name: str = "mesh",
        ttl_s: float = 3600.0,
        context: str | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(
            meshes,
            backend="process",
            name=name,
            options={"env": dict(env or {})},
            ttl_s=ttl_s,
            context=context,
            folder=folder,
        )


class ProcessBackend(Backend):
    """Backend that starts workers as local processes, and finds them by their command lines."""

    poll_s = 0.1
    runs_clients = True

    def plan(self, request: AllocationRequest) -> str:
        """Return the commands."""
        lines = [shlex.join(self._command(request, *host).argv) for host in request.hosts()]
        if request.spec.client is not None:
            lines.append(shlex.join(client_argv(request, more=_CLIENT_OPTIONS)))
        return "\n".join(lines) + "\n"

    def allocate(self, request: AllocationRequest) -> Allocation:
        """Start each worker that does not run yet, and the client script unless it was started."""
        running = running_workers(request.id)
        for mesh, rank in request.hosts():
            if (mesh, rank) not in running:
                self._start(request, mesh, rank)
        if request.spec.client is not None:
            _start(lambda: start_client(request, self.options.get("env", {}), _CLIENT_OPTIONS))
        return _allocation(request)

    def find(self, request: AllocationRequest) -> Allocation | None:
        """Return the allocation; running processes are found by its id."""
        return _allocation(request)

    def report(self, allocation: Allocation) -> Report:
        """Determine which workers run, and which of them have reported."""
        running = running_workers(allocation["id"])
        hosts = tuple(
            _host(allocation, mesh, rank, running.get((mesh, rank), set()))
            for mesh, count in allocation["meshes"].items()
            for rank in range(count)
        )
        states = {host.state for host in hosts}
        # The client runner terminates the workers, and then stores the exit status of the script.
        is_client_there = running_client(allocation["id"]) is not None
        client = client_status(allocation["folder"])
        status = None if client is None else client.status
        if states == {Phase.ENDED} and not is_client_there:
            return Report(Phase.ENDED, _end(status), hosts, status)
        state = Phase.PENDING if Phase.PENDING in states else Phase.RUNNING
        return Report(state, _STARTING if state is Phase.PENDING else "", hosts, status)

    def release(self, allocation: Allocation) -> None:
        """Terminate the client script and the workers, with all their descendants."""
        end_client(allocation["id"])
        end_workers(all_workers(allocation["id"]))

    def resize(self, allocation: Allocation, request: AllocationRequest) -> Allocation:
        """Start the additional workers, or terminate the excess ones."""
        wanted = set(request.hosts())
        unwanted = running_workers(request.id).keys() - wanted
        end_workers(all_workers(request.id, unwanted))
        return self.allocate(request)

    def logs(self, allocation: Allocation, mesh: str, rank: int, lines: int) -> str:
        """Read the log of a worker."""
        return tail(Path(allocation["folder"], "logs", f"{mesh}-{rank}.log"), lines)

    def client_output(self, allocation: Allocation, start: int) -> bytes:
        """Read the log of the client script."""
        return client_output(client_log(allocation["folder"]), start)

    def _command(self, request: AllocationRequest, mesh: str, rank: int) -> WorkerCommand:
        return request.worker(mesh, rank, listen="tcp://127.0.0.1:0")

    def _start(self, request: AllocationRequest, mesh: str, rank: int) -> None:
        command = self._command(request, mesh, rank)
        command.save_secret()
        env = {**self.options.get("env", {}), **command.env}
        _start(lambda: start_worker(command.argv, env, request.log_file(mesh, rank)))


def _start(start: Callable[[], None]) -> None:
    try:
        start()
    except OSError as error:
        raise JobError(f"a process cannot be started: {error}: see plan()") from error


def _end(status: int | None) -> str:
    if status is None:
        return "all workers have ended"
    return f"the client script has ended with status {status}"


def _allocation(request: AllocationRequest) -> dict[str, Any]:
    meshes = {mesh.name: mesh.hosts for mesh in request.spec.meshes}
    return {"id": request.id, "folder": str(request.folder), "meshes": meshes}


def _host(allocation: Allocation, mesh: str, rank: int, pids: set[int]) -> HostReport:
    worker_report = read_json(Path(allocation["folder"], "workers", f"{mesh}-{rank}.json"))
    if not pids:
        return HostReport(mesh, rank, Phase.ENDED, reason="its worker has exited")
    if worker_report is None or worker_report["pid"] not in pids:
        return HostReport(mesh, rank, Phase.PENDING, reason=_STARTING)
    return HostReport(
        mesh,
        rank,
        Phase.RUNNING,
        worker_report["address"],
        epoch=worker_report["epoch"],
        control=worker_report.get("control"),
    )
