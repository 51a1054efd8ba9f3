"""SLURM as a backend: one batch job for all meshes of a job."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mesh_jobs._backend import Backend
from mesh_jobs._errors import SchedulerUnreachable
from mesh_jobs._files import read_json
from mesh_jobs._order import Order
from mesh_jobs._report import HostReport, JobEvent, Phase, Report, Ticket
from mesh_jobs._slurm_commands import Slurm, SlurmComponent
from mesh_jobs._slurm_script import (
    EVENTS,
    ended_file,
    is_heterogeneous,
    job_name,
    log_folder,
    log_name,
    nodes_file,
    render,
    worker,
)
from mesh_jobs._tail import tail

__all__ = ["SlurmBackend"]

#: How long to wait for a program that was killed while it submitted: its `sbatch` may go on.
_SUBMISSION_LIMIT_S = 90.0

#: How long a worker may take to answer of which the scheduler knows nothing.
_CONNECT_LIMIT_S = 2.0

#: How long a job may take to end; what then still runs is the scheduler's to end.
_RELEASE_LIMIT_S = 120.0


class SlurmBackend(Backend):
    """Submits one job for all meshes; its workers report in a folder that all nodes see."""

    def plan(self, order: Order) -> str:
        """Gives the batch script."""
        return render(order, self.options).script

    def allocate(self, order: Order) -> Ticket:
        """Submits the script, unless that was done."""
        log_folder(order, self.options).mkdir(parents=True, exist_ok=True)
        with _submitting(order) as held:
            job_id = Slurm().find(job_name(order))
            if job_id is None:
                for mesh in order.spec.meshes:
                    worker(order, mesh.name, self.options).save_secret()
                job_id = Slurm().submit(render(order, self.options), held)
        return self._ticket(order, job_id)

    def find(self, order: Order) -> Ticket | None:
        """Gives the ticket of the job of that order, None when there is none."""
        with _submitting(order):
            job_id = Slurm().find(job_name(order))
        return None if job_id is None else self._ticket(order, job_id)

    def report(self, ticket: Ticket) -> Report:
        """Says how the job is, by what the scheduler says and its workers have reported."""
        parts = _parts(ticket)
        if not parts:
            return _unknown(ticket)
        # A job of several parts is as far as the part that is least far.
        for part in parts:
            if part.is_over:
                reason = f"job {ticket['job_id']} is {part.state}{_in_brackets(part.reason)}"
                if not all(other.is_over for other in parts):
                    # What is left of it is ended by the scheduler.
                    return _waits(ticket, parts, reason)
                return Report(Phase.ENDED, reason, tuple(_hosts(ticket, Phase.ENDED, reason)))
        for part in parts:
            if part.is_waiting:
                return _waits(ticket, parts, f"{part.state}{_in_brackets(part.reason)}")
        nodes = _Nodes(ticket, parts)
        hosts = tuple(
            _host(ticket, parts[0].restarts, mesh, rank, nodes) for mesh, rank in _all(ticket)
        )
        return Report(Phase.RUNNING, "", hosts)

    def release(self, ticket: Ticket) -> None:
        """Cancels the job, and waits until it has ended on all nodes."""
        until = time.monotonic() + _RELEASE_LIMIT_S
        pause_s = 0.05
        asked = False
        while any(not part.is_over for part in _parts(ticket)):
            if not asked:
                Slurm().cancel(str(ticket["job_id"]))
                asked = True
            if time.monotonic() > until:
                return
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, self.poll_s)

    def logs(self, ticket: Ticket, mesh: str, rank: int, lines: int) -> str:
        """Gives the end of what a worker has printed, or of what the script has."""
        name = str(ticket["log_names"][mesh]).replace("%t", str(rank))
        folder = Path(ticket["logs"])
        told = tail(folder / name, lines)
        # A worker that was never started is what the script can tell of.
        return told or tail(folder / f"slurm-{ticket['job_id']}.log", lines)

    def events(self, ticket: Ticket) -> Sequence[JobEvent]:
        """Gives what the script has noted: starts, and warnings of the scheduler."""
        try:
            text = (Path(ticket["folder"]) / EVENTS).read_text()
        except FileNotFoundError:
            return ()
        found = []
        for line in text.splitlines():
            at, epoch, kind, *words = line.split()
            again = f", restart {epoch}" if kind == "started" and epoch != "0" else ""
            found.append(JobEvent(float(at), kind, " ".join(words) + again))
        return found

    def _ticket(self, order: Order, job_id: str) -> dict[str, Any]:
        meshes = order.spec.meshes
        return {
            "job_id": job_id,
            "job_name": job_name(order),
            "folder": str(order.folder.absolute()),
            "logs": str(log_folder(order, self.options)),
            "log_names": {
                one.name: log_name(order, self.options, one.name, "%t") for one in meshes
            },
            "meshes": {mesh.name: mesh.hosts for mesh in meshes},
            "is_heterogeneous": is_heterogeneous(order, self.options),
        }


class _Nodes:
    """Which node each worker was started on, and whether the job has that still."""

    def __init__(self, ticket: Ticket, parts: Sequence[SlurmComponent]) -> None:
        self._lost: dict[tuple[str, int], str] = {}
        path = nodes_file(Path(ticket["folder"]), parts[0].restarts)
        try:
            began = path.read_text().split()
        except FileNotFoundError:
            return  # the script has not begun
        now = [part.nodes for part in parts]
        if began == now or len(began) != len(now):
            return
        slurm = Slurm()
        kept = {name for nodes in now for name in slurm.names(nodes)}
        # One after another over all parts: that is the order in which they are started.
        names = [name for nodes in began for name in slurm.names(nodes)]
        for place, name in zip(_all(ticket), names, strict=False):
            if name not in kept:
                node = slurm.node(name)
                self._lost[place] = f"node {name} is {node.state}{_in_brackets(node.reason)}"

    def why_lost(self, mesh: str, rank: int) -> str | None:
        """Returns why a worker's node is lost, None where it is not."""
        return self._lost.get((mesh, rank))


def _host(ticket: Ticket, epoch: int, mesh: str, rank: int, nodes: _Nodes) -> HostReport:
    if why := nodes.why_lost(mesh, rank):
        return HostReport(mesh, rank, Phase.ENDED, None, why, epoch)
    folder = Path(ticket["folder"])
    ended = _ended(folder, mesh, rank, epoch)
    if ended is not None:
        why = f"its worker ended with status {ended}"
        return HostReport(mesh, rank, Phase.ENDED, None, why, epoch)
    told = read_json(folder / "workers" / f"{mesh}-{rank}.json")
    # After the job was put into the queue again there is what its workers reported before.
    if told is None or told.get("epoch") != epoch:
        return HostReport(mesh, rank, Phase.PENDING, None, "its worker starts", epoch)
    return HostReport(mesh, rank, Phase.RUNNING, told["address"], "", epoch)


def _ended(folder: Path, mesh: str, rank: int, epoch: int) -> int | None:
    try:
        words = ended_file(folder, mesh, rank).read_text().split()
    except FileNotFoundError:
        return None
    # Half a line is no end yet: the shell does not write it in one step on all file systems.
    return int(words[1]) if len(words) == 2 and int(words[0]) == epoch else None


def _parts(ticket: Ticket) -> list[SlurmComponent]:
    """Returns the parts of the job, none when the scheduler does not know it."""
    found = Slurm().job(str(ticket["job_id"]))
    # A scheduler that has lost its state counts from one again: that is somebody else's job.
    return [part for part in found if part.name == ticket["job_name"]]


def _unknown(ticket: Ticket) -> Report:
    """Reports a job that the scheduler has forgotten: long ago, or before it could note it.

    A controller that is killed has not saved what it was told last; the job's workers go on.
    """
    reason = f"the scheduler does not know job {ticket['job_id']} any more"
    hosts = []
    for mesh, rank in _all(ticket):
        told = read_json(Path(ticket["folder"]) / "workers" / f"{mesh}-{rank}.json")
        if told is not None and _is_served(told["address"]):
            up = HostReport(mesh, rank, Phase.RUNNING, told["address"], "", told["epoch"])
            hosts.append(up)
        else:
            hosts.append(HostReport(mesh, rank, Phase.ENDED, None, reason))
    is_up = any(host.is_up for host in hosts)
    return Report(Phase.RUNNING if is_up else Phase.ENDED, reason, tuple(hosts))


def _is_served(address: str) -> bool:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_LIMIT_S):
            return True
    except OSError:
        return False


def _waits(ticket: Ticket, parts: Sequence[SlurmComponent], reason: str) -> Report:
    epoch = parts[0].restarts
    return Report(Phase.PENDING, reason, tuple(_hosts(ticket, Phase.PENDING, reason, epoch)))


def _hosts(ticket: Ticket, state: Phase, reason: str, epoch: int = 0) -> Iterator[HostReport]:
    for mesh, rank in _all(ticket):
        yield HostReport(mesh, rank, state, None, reason, epoch)


def _all(ticket: Ticket) -> Iterator[tuple[str, int]]:
    sizes: Mapping[str, int] = ticket["meshes"]
    for mesh, hosts in sizes.items():
        for rank in range(hosts):
            yield mesh, rank


def _in_brackets(reason: str) -> str:
    return f" ({reason})" if reason else ""


@contextmanager
def _submitting(order: Order) -> Iterator[int]:
    """Waits until no other program submits for this job, nor one that was killed at it.

    Gives the file descriptor that keeps others waiting for as long as anybody has it open.
    """
    path = order.folder / "workers" / "slurm-submission.lock"
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        until = time.monotonic() + _SUBMISSION_LIMIT_S
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise SchedulerUnreachable(
                        "another program has been submitting this job for long: try again later"
                    ) from None
                time.sleep(0.1)
        yield held
    finally:
        os.close(held)
