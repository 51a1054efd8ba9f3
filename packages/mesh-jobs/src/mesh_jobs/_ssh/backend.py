"""A backend for machines with SSH access, on which it starts workers."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from mesh_core import ConfigError
from mesh_jobs._backend.backend import Backend
from mesh_jobs._backend.order import Order, WorkerCommand
from mesh_jobs._backend.report import HostReport, Phase, Report, Ticket
from mesh_jobs._client.static_backend import fixed_ticket
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

    def plan(self, order: Order) -> str:
        """Return the command of each worker, and the ssh command that would start it."""
        lines = []
        for (mesh, rank), machine in _machines(order).items():
            command = self._worker(order, mesh, rank, machine)
            lines += [f"{mesh}[{rank}]: " + " ".join(self._ssh.command(machine)[:-1])]
            lines += [f"    {self._ssh.remote(*command.argv[1:])}"]
        return "\n".join(lines) + "\n"

    def allocate(self, order: Order) -> Ticket:
        """Start the workers on each machine that do not run yet."""
        machines = _machines(order)
        requests: dict[str, dict[str, Any]] = {}
        for (mesh, rank), machine in machines.items():
            command = self._worker(order, mesh, rank, machine)
            request = requests.setdefault(
                machine, {"verb": "start", "order": order.id, "workers": []}
            )
            request["workers"].append(
                {
                    "mesh": mesh,
                    "rank": rank,
                    "argv": ["{python}", *command.argv[1:]],
                    "env": dict(command.env),
                    "secret": command.secret.decode(),
                }
            )
        if bad := [one.problem for one in self._ssh.request(requests).values() if one.problem]:
            raise JobError(
                f"{len(bad)} of {len(requests)} machines could not start workers: "
                f"{'; '.join(bad)}: check that ssh logs in there without a prompt, and that "
                f"{self._ssh.python!r} has mesh-jobs installed"
            )
        ticket = _ticket(order)
        if order.spec.client is not None:
            self._start_client(order, ticket)
        return ticket

    def find(self, order: Order) -> Ticket | None:
        """Return the ticket; machines find workers by the order id."""
        return _ticket(order)

    def report(self, ticket: Ticket) -> Report:
        """Query each machine for its running workers."""
        answers = self._request_places(ticket, "report")
        if answers and all(one.problem for one in answers.values()):
            raise SchedulerUnreachable(
                f"no machine of the job can be queried: {next(iter(answers.values())).problem}: "
                "try again when the network is back"
            )
        hosts = tuple(
            _host(mesh, rank, answers[machine]) for mesh, rank, machine in ticket["places"]
        )
        states = {host.state for host in hosts}
        told = answers[_first(ticket)]
        client = {"is_running": False, "status": None} if told.problem else told.value["client"]
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

    def release(self, ticket: Ticket) -> None:
        """Terminate the workers on each machine, and remove their files."""
        self._end(ticket, with_client=True)

    def resize(self, ticket: Ticket, order: Order) -> Ticket:
        """Terminate excess workers, and start missing or additional ones.

        A mesh can grow only onto machines that an earlier resize removed.
        """
        wanted = _ticket(order)
        extra = [place for place in ticket["places"] if place not in wanted["places"]]
        self._end({**ticket, "places": extra}, with_client=False)
        return self.allocate(order)

    def logs(self, ticket: Ticket, mesh: str, rank: int, lines: int) -> str:
        """Read the log of a worker on its machine."""
        machine = next(one[2] for one in ticket["places"] if one[:2] == [mesh, rank])
        request = {
            "verb": "logs",
            "order": ticket["order"],
            "mesh": mesh,
            "rank": rank,
            "lines": lines,
        }
        answer = self._ssh.request({machine: request})[machine]
        if answer.problem:
            raise SchedulerUnreachable(f"{answer.problem}: try again when it can be reached")
        return str(answer.value)

    def client_output(self, ticket: Ticket, start: int) -> bytes:
        """Read the log of the client script on its machine."""
        machine = _first(ticket)
        request = {"verb": "client-output", "order": ticket["order"], "start": start}
        answer = self._ssh.request({machine: request})[machine]
        if answer.problem:
            raise SchedulerUnreachable(f"{answer.problem}: try again when it can be reached")
        return base64.b64decode(answer.value)

    def _start_client(self, order: Order, ticket: Ticket) -> None:
        """Start the client script on the first machine, with the addresses of all workers.

        Raises:
            SchedulerUnreachable: The machine does not respond at the moment.
            JobError: A worker has ended, or the workers did not come up in time.
        """
        until = time.monotonic() + _WORKERS_UP_S
        while (report := self.report(ticket)).state is not Phase.RUNNING or not all(
            host.is_up for host in report.hosts
        ):
            lost = next((host for host in report.hosts if host.state is Phase.ENDED), None)
            if lost is not None or time.monotonic() > until:
                why = lost.reason if lost is not None else report.reason
                raise JobError(f"the client script is not started without its hosts: {why}")
            time.sleep(_PAUSE_S)
        # The script cannot log in to other machines, so it receives the current addresses of the
        # hosts.
        spec = replace(order.spec, backend="fixed", options={})
        record = Record(spec, order.id, fixed_ticket(report.hosts))
        request = {
            "verb": "client",
            "order": order.id,
            "record": record.to_json(),
            "keys": order.controller_files(),
            "env": dict(self._ssh.env),
            "context": order.folder.name,
        }
        machine = _first(ticket)
        answer = self._ssh.request({machine: request})[machine]
        if answer.problem:
            raise SchedulerUnreachable(f"the client script is not started: {answer.problem}")

    def _worker(self, order: Order, mesh: str, rank: int, machine: str) -> WorkerCommand:
        name = None
        if self.options["advertise"] == "ssh":
            name = real_name(machine, tuple(self.options["ssh_args"]))
        listen = f"tcp://*:{self.options['port']}"
        return order.worker(mesh, rank, listen=listen, advertise=name, report=None, secret="-")

    def _request_places(self, ticket: Ticket, verb: str, **more: Any) -> dict[str, SSHResponse]:
        places: dict[str, list[Place]] = {}
        for mesh, rank, machine in ticket["places"]:
            places.setdefault(machine, []).append((mesh, rank))
        return self._ssh.request(
            {
                machine: {"verb": verb, "order": ticket["order"], "places": mine, **more}
                for machine, mine in places.items()
            }
        )

    def _end(self, ticket: Ticket, *, with_client: bool) -> None:
        answers = self._request_places(ticket, "end", with_client=with_client).values()
        if bad := [one.problem for one in answers if one.problem]:
            raise SchedulerUnreachable(
                f"{len(bad)} machines could not terminate their workers: {'; '.join(bad)}: try "
                "again, or abandon them with kill(force=True); they exit when their lease expires"
            )


def _machines(order: Order) -> dict[Place, str]:
    """Return the machine of each host.

    Raises:
        NotSupported: A mesh requests more hosts than it has machines.
    """
    found = {}
    for mesh in order.spec.meshes:
        machines = mesh.options.get("machines", ())
        if mesh.hosts > len(machines):
            raise NotSupported(
                f"mesh {mesh.name!r} needs {mesh.hosts} hosts but names {len(machines)} machines: "
                "kill the job, and apply it with more machines"
            )
        found.update({(mesh.name, rank): machines[rank] for rank in range(mesh.hosts)})
    return found


def _first(ticket: Ticket) -> str:
    """Return the machine of the first host, which runs the client script."""
    return str(ticket["places"][0][2])


def _ticket(order: Order) -> dict[str, Any]:
    places = [[mesh, rank, machine] for (mesh, rank), machine in _machines(order).items()]
    return {"order": order.id, "places": places}


def _host(mesh: str, rank: int, answer: SSHResponse) -> HostReport:
    if answer.problem:
        return HostReport(mesh, rank, Phase.PENDING, reason=answer.problem)
    told = next(one for one in answer.value["hosts"] if (one["mesh"], one["rank"]) == (mesh, rank))
    if not told["is_running"]:
        last = told["last"].strip().splitlines()
        why = f"its worker has exited{f': {last[-1]}' if last else ''}"
        return HostReport(mesh, rank, Phase.ENDED, reason=why)
    if told["address"] is None:
        return HostReport(mesh, rank, Phase.PENDING, reason="its worker has not reported yet")
    control = told.get("control")
    return HostReport(mesh, rank, Phase.RUNNING, told["address"], control=control)
