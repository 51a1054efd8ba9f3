"""Hosts that are processes of this machine: to try a program, and to test it."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from mesh_jobs._backend import Backend
from mesh_jobs._errors import JobError
from mesh_jobs._files import read_json
from mesh_jobs._job import Job
from mesh_jobs._order import Order, WorkerCommand
from mesh_jobs._processes import Process, command_of, end_all, processes
from mesh_jobs._report import HostReport, Phase, Report, Ticket
from mesh_jobs._spec import MeshSpec
from mesh_jobs._tail import tail

__all__ = ["ProcessBackend", "ProcessJob"]

_END_S = 10.0
# A worker that reports is up: nothing is asked of it in between.
_STARTING = "its worker has not reported yet"


class ProcessJob(Job):
    """A job whose hosts are processes of this machine; they outlive the program.

        job = ProcessJob({"trainers": 2})
        hosts = job.state(timeout=60).trainers

    Args:
        meshes: How many hosts each mesh has.
        env: What to add to the environment of the workers.
        name: What the job is called.
        ttl_s: How long the hosts stay when no program uses them.
        context: Under what name it is applied.
        folder: In which folder the state is; the current one when left out.
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
    """Starts workers as processes of this machine, and finds them by their command lines."""

    poll_s = 0.1

    def plan(self, order: Order) -> str:
        """Gives the commands."""
        lines = [shlex.join(self._command(order, *host).argv) for host in order.hosts()]
        return "\n".join(lines) + "\n"

    def allocate(self, order: Order) -> Ticket:
        """Starts each worker that does not run yet."""
        running = _running(order.id)
        for mesh, rank in order.hosts():
            if (mesh, rank) not in running:
                self._start(order, mesh, rank)
        return _ticket(order)

    def find(self, order: Order) -> Ticket | None:
        """Gives the ticket: what runs is found by the order's id."""
        return _ticket(order)

    def report(self, ticket: Ticket) -> Report:
        """Looks which workers run, and which of them have reported."""
        running = _running(ticket["order"])
        hosts = tuple(
            _host(ticket, mesh, rank, running.get((mesh, rank)))
            for mesh, count in ticket["meshes"].items()
            for rank in range(count)
        )
        states = {host.state for host in hosts}
        if states == {Phase.ENDED}:
            return Report(Phase.ENDED, "all workers have ended", hosts)
        state = Phase.PENDING if Phase.PENDING in states else Phase.RUNNING
        return Report(state, _STARTING if state is Phase.PENDING else "", hosts)

    def release(self, ticket: Ticket) -> None:
        """Ends the workers, and what they run."""
        end_all(_running(ticket["order"]).values(), _END_S)

    def resize(self, ticket: Ticket, order: Order) -> Ticket:
        """Starts the workers that are new, and ends those that are too many."""
        wanted = set(order.hosts())
        running = _running(order.id)
        end_all([one for place, one in running.items() if place not in wanted], _END_S)
        return self.allocate(order)

    def logs(self, ticket: Ticket, mesh: str, rank: int, lines: int) -> str:
        """Reads the log of a worker."""
        return tail(Path(ticket["folder"], "logs", f"{mesh}-{rank}.log"), lines)

    def _command(self, order: Order, mesh: str, rank: int) -> WorkerCommand:
        return order.worker(mesh, rank, listen="tcp://127.0.0.1:0")

    def _start(self, order: Order, mesh: str, rank: int) -> None:
        command = self._command(order, mesh, rank)
        command.save_secret()
        env = {**os.environ, **self.options.get("env", {}), **command.env}
        number = os.open(
            order.log_file(mesh, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        try:
            # A session of its own: Ctrl-C in the program's terminal is not meant for it.
            subprocess.Popen(
                command.argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=number,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise JobError(f"the worker cannot be started: {error}: see plan()") from error
        finally:
            os.close(number)


def _ticket(order: Order) -> dict[str, Any]:
    meshes = {mesh.name: mesh.hosts for mesh in order.spec.meshes}
    return {"order": order.id, "folder": str(order.folder), "meshes": meshes}


def _running(order_id: str) -> dict[tuple[str, int], Process]:
    """Finds the workers of an order, by mesh and rank, whoever has started them."""
    found = {}
    for process in processes():
        words = command_of(process.pid)
        if "mesh_jobs.worker" in words and order_id in words:
            told = dict(pairwise(words))
            if process.session == process.pid and told.get("--order") == order_id:
                found[told["--mesh"], int(told["--rank"])] = process
    return found


def _host(ticket: Ticket, mesh: str, rank: int, process: Process | None) -> HostReport:
    told = read_json(Path(ticket["folder"], "workers", f"{mesh}-{rank}.json"))
    if process is None:
        return HostReport(mesh, rank, Phase.ENDED, reason="its worker has ended")
    if told is None or told["pid"] != process.pid:
        return HostReport(mesh, rank, Phase.PENDING, reason=_STARTING)
    return HostReport(mesh, rank, Phase.RUNNING, told["address"], epoch=told["epoch"])
