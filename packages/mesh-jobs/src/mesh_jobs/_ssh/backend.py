"""A backend for machines with SSH access, on which it starts workers."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from mesh_core import ConfigError
from mesh_jobs._backend.allocation_request import AllocationRequest, WorkerCommand
from mesh_jobs._backend.backend import Backend
from mesh_jobs._backend.report import Allocation, HostReport, Phase, Report
from mesh_jobs._client.static_backend import fixed_allocation
from mesh_jobs._errors import JobError, NotSupported, SchedulerUnreachable
from mesh_jobs._job.job import Job
from mesh_jobs._ssh.client import SSHClient, SSHResponse, real_name
from mesh_jobs._ssh.options import SSHOptions, SSHWorkerOptions
from mesh_jobs._state.record import Record

__all__ = ["SSHBackend", "SSHJob"]

Place = tuple[str, int]

_WORKERS_UP_S = 60.0
_PAUSE_S = 0.2


class SSHJob(Job):
    """A job whose hosts are machines with SSH access.

        job = SSHJob({"trainers": ["node7", "node8"]})
        trainers = job.state(timeout=60).trainers

    ssh must be able to log in without a prompt, and mesh-jobs must be installed on the machines.
    Workers do not depend on the SSH connection: they keep running after the connection or the
    program has ended.

    Args:
        meshes: The machines of each mesh, as ssh addresses them.
        name: The name of the job.
        options: How ssh connects to the machines.
        workers: How the workers run on the machines.
        ttl_s: The time in seconds for which the workers are kept while no program uses them.
        context: The context under which the job is applied.
        folder: The folder that contains the state. Defaults to the current folder.

    Raises:
        ConfigError: A name is invalid, or a mesh has no list of machines.
    """

    def __init__(
        self,
        meshes: Mapping[str, Sequence[str]] | None = None,
        *,
        name: str = "mesh",
        options: SSHOptions | None = None,
        workers: SSHWorkerOptions | None = None,
        ttl_s: float = 3600.0,
        context: str | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        options = options or SSHOptions()
        workers = workers or SSHWorkerOptions()
        super().__init__(
            backend="ssh",
            name=name,
            options={**options.to_json(), **workers.to_json()},
            ttl_s=ttl_s,
            context=context,
            folder=folder,
        )
        for mesh, machines in (meshes or {}).items():
            self.add_mesh(mesh, machines)

    def add_mesh(
        self,
        name: str,
        hosts: int | Sequence[str],
        *,
        cpus: int | None = None,
        memory: str | None = None,
        gpus: int | None = None,
        **options: Any,
    ) -> Self:
        """Add a mesh of the given machines to the job; call this before `apply`.

        Args:
            name: The name of the mesh.
            hosts: The machines, as ssh addresses them; a machine may be listed several times.
            cpus: Recorded only, because the resources of a machine are fixed.
            memory: Recorded only.
            gpus: Recorded only.
            options: No options are supported.

        Raises:
            ConfigError: The name is invalid or used already, or no machines are given.
        """
        if isinstance(hosts, int | str):
            raise ConfigError(f"hosts of mesh {name!r} are {hosts!r}: give a list of machines")
        machines = list(hosts)
        return super().add_mesh(
            name, len(machines), cpus=cpus, memory=memory, gpus=gpus, machines=machines, **options
        )


class SSHBackend(Backend):
    """Backend that starts, monitors and terminates workers on each machine."""

    poll_s = 2.0
    runs_clients = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._ssh = SSHClient(
            python=options["python"],
            args=tuple(options["ssh_args"]),
            env=options["env"],
            limit_s=options["connect_timeout_s"],
        )

    def plan(self, request: AllocationRequest) -> str:
        """Return the command of each worker, and the ssh command that would start it."""
        lines = []
        for (mesh, rank), machine in _machines(request).items():
            command = self._worker(request, mesh, rank, machine)
            lines += [f"{mesh}[{rank}]: " + " ".join(self._ssh.command(machine)[:-1])]
            lines += [f"    {self._ssh.remote(*command.argv[1:])}"]
        return "\n".join(lines) + "\n"

    def allocate(self, request: AllocationRequest) -> Allocation:
        """Start the workers on each machine that do not run yet."""
        machines = _machines(request)
        messages: dict[str, dict[str, Any]] = {}
        for (mesh, rank), machine in machines.items():
            command = self._worker(request, mesh, rank, machine)
            message = messages.setdefault(
                machine, {"verb": "start", "allocation_id": request.id, "workers": []}
            )
            message["workers"].append(
                {
                    "mesh": mesh,
                    "rank": rank,
                    "argv": ["{python}", *command.argv[1:]],
                    "env": dict(command.env),
                    "secret": command.secret.decode(),
                }
            )
        if bad := [one.problem for one in self._ssh.request(messages).values() if one.problem]:
            raise JobError(
                f"{len(bad)} of {len(messages)} machines could not start workers: "
                f"{'; '.join(bad)}: check that ssh logs in there without a prompt, and that "
                f"{self._ssh.python!r} has mesh-jobs installed"
            )
        allocation = _allocation(request)
        if request.spec.client is not None:
            self._start_client(request, allocation)
        return allocation

    def find(self, request: AllocationRequest) -> Allocation | None:
        """Return the allocation; machines find workers by its id."""
        return _allocation(request)

    def report(self, allocation: Allocation) -> Report:
        """Query each machine for its running workers."""
        answers = self._request_places(allocation, "report")
        if answers and all(one.problem for one in answers.values()):
            raise SchedulerUnreachable(
                f"no machine of the job can be queried: {next(iter(answers.values())).problem}: "
                "try again when the network is back"
            )
        hosts = tuple(
            _host(mesh, rank, answers[machine]) for mesh, rank, machine in allocation["places"]
        )
        states = {host.state for host in hosts}
        first = answers[_first(allocation)]
        client = {"is_running": False, "status": None} if first.problem else first.value["client"]
        status = client["status"]
        if states == {Phase.ENDED} and not client["is_running"]:
            how = "all workers have ended"
            if status is not None:
                how = f"the client script has ended with status {status}"
            return Report(Phase.ENDED, how, hosts, status)
        waiting = next((host.reason for host in hosts if host.state is Phase.PENDING), None)
        if waiting is not None:
            return Report(Phase.PENDING, waiting, hosts, status)
        return Report(Phase.RUNNING, "", hosts, status)

    def release(self, allocation: Allocation) -> None:
        """Terminate the workers on each machine, and remove their files."""
        self._end(allocation, with_client=True)

    def resize(self, allocation: Allocation, request: AllocationRequest) -> Allocation:
        """Terminate excess workers, and start missing or additional ones.

        A mesh can grow only onto machines that an earlier resize removed.
        """
        wanted = _allocation(request)
        extra = [place for place in allocation["places"] if place not in wanted["places"]]
        self._end({**allocation, "places": extra}, with_client=False)
        return self.allocate(request)

    def logs(self, allocation: Allocation, mesh: str, rank: int, lines: int) -> str:
        """Read the log of a worker on its machine."""
        machine = next(one[2] for one in allocation["places"] if one[:2] == [mesh, rank])
        request = {
            "verb": "logs",
            "allocation_id": allocation["id"],
            "mesh": mesh,
            "rank": rank,
            "lines": lines,
        }
        answer = self._ssh.request({machine: request})[machine]
        if answer.problem:
            raise SchedulerUnreachable(f"{answer.problem}: try again when it can be reached")
        return str(answer.value)

    def client_output(self, allocation: Allocation, start: int) -> bytes:
        """Read the log of the client script on its machine."""
        machine = _first(allocation)
        request = {
            "verb": "client-output",
            "allocation_id": allocation["id"],
            "start": start,
        }
        answer = self._ssh.request({machine: request})[machine]
        if answer.problem:
            raise SchedulerUnreachable(f"{answer.problem}: try again when it can be reached")
        return base64.b64decode(answer.value)

    def _start_client(self, request: AllocationRequest, allocation: Allocation) -> None:
        """Start the client script on the first machine, with the addresses of all workers.

        Raises:
            SchedulerUnreachable: The machine does not respond at the moment.
            JobError: A worker has ended, or the workers did not come up in time.
        """
        until = time.monotonic() + _WORKERS_UP_S
        while (report := self.report(allocation)).state is not Phase.RUNNING or not all(
            host.is_up for host in report.hosts
        ):
            lost = next((host for host in report.hosts if host.state is Phase.ENDED), None)
            if lost is not None or time.monotonic() > until:
                why = lost.reason if lost is not None else report.reason
                raise JobError(f"the client script is not started without its hosts: {why}")
            time.sleep(_PAUSE_S)
        # The script cannot log in to other machines, so it receives the current addresses of the
        # hosts.
        spec = replace(request.spec, backend="fixed", options={})
        record = Record(spec, request.id, fixed_allocation(report.hosts))
        message = {
            "verb": "client",
            "allocation_id": request.id,
            "record": record.to_json(),
            "keys": request.controller_files(),
            "env": dict(self._ssh.env),
            "context": request.folder.name,
        }
        machine = _first(allocation)
        answer = self._ssh.request({machine: message})[machine]
        if answer.problem:
            raise SchedulerUnreachable(f"the client script is not started: {answer.problem}")

    def _worker(
        self, request: AllocationRequest, mesh: str, rank: int, machine: str
    ) -> WorkerCommand:
        name = None
        if self.options["advertise"] == "ssh":
            name = real_name(machine, tuple(self.options["ssh_args"]))
        listen = f"tcp://*:{self.options['port']}"
        return request.worker(mesh, rank, listen=listen, advertise=name, report=None, secret="-")

    def _request_places(
        self, allocation: Allocation, verb: str, **more: Any
    ) -> dict[str, SSHResponse]:
        places: dict[str, list[Place]] = {}
        for mesh, rank, machine in allocation["places"]:
            places.setdefault(machine, []).append((mesh, rank))
        return self._ssh.request(
            {
                machine: {
                    "verb": verb,
                    "allocation_id": allocation["id"],
                    "places": mine,
                    **more,
                }
                for machine, mine in places.items()
            }
        )

    def _end(self, allocation: Allocation, *, with_client: bool) -> None:
        answers = self._request_places(allocation, "end", with_client=with_client).values()
        if bad := [one.problem for one in answers if one.problem]:
            raise SchedulerUnreachable(
                f"{len(bad)} machines could not terminate their workers: {'; '.join(bad)}: try "
                "again, or abandon them with kill(force=True); they exit when their lease expires"
            )


def _machines(request: AllocationRequest) -> dict[Place, str]:
    """Return the machine of each host.

    Raises:
        NotSupported: A mesh requests more hosts than it has machines.
    """
    found = {}
    for mesh in request.spec.meshes:
        machines = mesh.options.get("machines", ())
        if mesh.hosts > len(machines):
            raise NotSupported(
                f"mesh {mesh.name!r} needs {mesh.hosts} hosts but names {len(machines)} machines: "
                "kill the job, and apply it with more machines"
            )
        found.update({(mesh.name, rank): machines[rank] for rank in range(mesh.hosts)})
    return found


def _first(allocation: Allocation) -> str:
    """Return the machine of the first host, which runs the client script."""
    return str(allocation["places"][0][2])


def _allocation(request: AllocationRequest) -> dict[str, Any]:
    places = [[mesh, rank, machine] for (mesh, rank), machine in _machines(request).items()]
    return {"id": request.id, "places": places}


def _host(mesh: str, rank: int, answer: SSHResponse) -> HostReport:
    if answer.problem:
        return HostReport(mesh, rank, Phase.PENDING, reason=answer.problem)
    worker = next(
        one for one in answer.value["hosts"] if (one["mesh"], one["rank"]) == (mesh, rank)
    )
    if not worker["is_running"]:
        last = worker["last"].strip().splitlines()
        why = f"its worker has exited{f': {last[-1]}' if last else ''}"
        return HostReport(mesh, rank, Phase.ENDED, reason=why)
    if worker["address"] is None:
        return HostReport(mesh, rank, Phase.PENDING, reason="its worker has not reported yet")
    control = worker.get("control")
    return HostReport(mesh, rank, Phase.RUNNING, worker["address"], control=control)
