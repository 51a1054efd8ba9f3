"""The report on an allocation, from the state of its batch jobs and the reports of its workers."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence

from mesh_jobs._atomic_files import read_json
from mesh_jobs._backend.report import HostReport, Phase, Report
from mesh_jobs._client.process import client_status
from mesh_jobs._slurm.allocation import BatchJob, SlurmAllocation
from mesh_jobs._slurm.commands import Slurm, SlurmComponent

__all__ = ["Place", "components", "nodes_at_start", "report"]

#: The time limit for connecting to a worker whose job the scheduler does not know.
_CONNECT_LIMIT_S = 2.0

Place = tuple[str, int]


def report(allocation: SlurmAllocation) -> Report:
    """Report the state of an allocation.

    Raises:
        SchedulerUnreachable: The scheduler cannot be reached.
    """
    places = allocation.places()
    jobs = {job.number: job for job in map(allocation.job_of, places)}
    reports = {number: _of_job(allocation, job) for number, job in jobs.items()}
    hosts = {
        (host.mesh, host.rank): (number, host)
        for number, one in sorted(reports.items())
        for host in one.hosts
        if allocation.job_of((host.mesh, host.rank)).number == number
    }
    found = tuple(hosts[place][1] for place in places)
    limits = [one.remaining_s for one in reports.values() if one.remaining_s is not None]
    for state in (Phase.PENDING, Phase.RUNNING, Phase.ENDED):
        of_state = [one for one in reports.values() if one.state is state]
        if of_state:
            reason = next((one.reason for one in of_state if one.reason), "")
            exit_code = next((one.exit_code for one in reports.values()), None)
            return Report(state, reason, found, exit_code, min(limits, default=None))
    raise AssertionError("an allocation has hosts")


def components(job: BatchJob) -> list[SlurmComponent]:
    """Return the components of a batch job; empty if the scheduler does not know it.

    Raises:
        SchedulerUnreachable: The scheduler cannot be reached.
    """
    # A scheduler that has lost its state reuses ids, so the id may belong to another job.
    return [part for part in Slurm().job(job.id) if part.name == job.name]


def _of_job(allocation: SlurmAllocation, job: BatchJob) -> Report:
    wanted = [place for place in allocation.places() if place in job.places()]
    parts = components(job)
    if not parts:
        return _unknown(allocation, job, wanted)
    epoch = job.first_epoch + parts[0].restarts
    exit_code = _exit_code(allocation, parts)
    # The least advanced component determines the state of a heterogeneous job.
    for part in parts:
        if part.is_over:
            reason = f"job {job.id} is {part.state}{_in_brackets(part.reason)}"
            # The scheduler ends the remaining components.
            all_over = all(other.is_over for other in parts)
            state = Phase.ENDED if all_over else Phase.PENDING
            return Report(
                state, reason, tuple(_uniform_reports(wanted, state, reason, epoch)), exit_code
            )
    for part in parts:
        if part.is_waiting:
            reason = f"{part.state}{_in_brackets(part.reason)}"
            hosts = tuple(_uniform_reports(wanted, Phase.PENDING, reason, epoch))
            return Report(Phase.PENDING, reason, hosts, remaining_s=parts[0].remaining_s)
    lost = _lost(allocation, job, epoch, parts)
    hosts = tuple(_host(allocation, place, epoch, lost.get(place)) for place in wanted)
    return Report(Phase.RUNNING, "", hosts, exit_code, parts[0].remaining_s)


def _exit_code(allocation: SlurmAllocation, parts: Sequence[SlurmComponent]) -> int | None:
    """Return the exit status of the client script, if there is one."""
    client = client_status(allocation.folder)
    # A client script of an earlier epoch ended because the job was requeued.
    if client is None or client.epoch != parts[0].restarts:
        return None
    return client.status if client.status is not None else parts[0].exit_code


def _host(allocation: SlurmAllocation, place: Place, epoch: int, lost: str | None) -> HostReport:
    if lost is not None:
        return HostReport(*place, Phase.ENDED, None, lost, epoch)
    ended = _ended(allocation, place, epoch)
    if ended is not None:
        reason = f"its worker exited with status {ended}"
        return HostReport(*place, Phase.ENDED, None, reason, epoch)
    worker_report = read_json(allocation.report_file(*place))
    # After a requeue, the files still contain the reports of the previous workers.
    if worker_report is None or worker_report["epoch"] != epoch:
        return HostReport(*place, Phase.PENDING, None, "its worker is starting", epoch)
    control = worker_report.get("control")
    return HostReport(*place, Phase.RUNNING, worker_report["address"], "", epoch, control)


def _ended(allocation: SlurmAllocation, place: Place, epoch: int) -> int | None:
    try:
        fields = allocation.ended_file(*place).read_text().split()
    except FileNotFoundError:
        return None
    # Ignore an incomplete line: on some file systems, the shell's write is not atomic.
    return int(fields[1]) if len(fields) == 2 and int(fields[0]) == epoch else None


def _lost(
    allocation: SlurmAllocation, job: BatchJob, epoch: int, parts: Sequence[SlurmComponent]
) -> dict[Place, str]:
    """Return the reason of the loss, for each host whose node no longer belongs to the job."""
    began = nodes_at_start(allocation, epoch)
    now = [part.nodes for part in parts]
    if began == now or len(began) != len(now):
        return {}
    slurm = Slurm()
    kept = {name for nodes in now for name in slurm.names(nodes)}
    names = [name for nodes in began for name in slurm.names(nodes)]
    lost = {}
    # Workers are started in the order of the nodes over all components.
    for place, name in zip(job.places(), names, strict=False):
        if name not in kept and place in allocation.places() and allocation.job_of(place) == job:
            node = slurm.node(name)
            lost[place] = f"node {name} is {node.state}{_in_brackets(node.reason)}"
    return lost


def nodes_at_start(allocation: SlurmAllocation, epoch: int) -> list[str]:
    """Return the node lists with which the components of a job started; empty before the start."""
    try:
        return (allocation.folder / "workers" / f"slurm-{epoch}.nodes").read_text().split()
    except FileNotFoundError:
        return []


def _unknown(allocation: SlurmAllocation, job: BatchJob, wanted: Sequence[Place]) -> Report:
    """Report a job that is unknown to the scheduler, because it ended long ago or was never saved.

    A controller that is killed loses its most recent state, while the workers of the job keep
    running.
    """
    reason = f"the scheduler no longer knows job {job.id}"
    hosts = []
    for place in wanted:
        worker_report = read_json(allocation.report_file(*place))
        if worker_report is not None and _is_served(worker_report["address"]):
            control = worker_report.get("control")
            up = HostReport(
                *place, Phase.RUNNING, worker_report["address"], "", worker_report["epoch"], control
            )
            hosts.append(up)
        else:
            hosts.append(HostReport(*place, Phase.ENDED, None, reason, job.first_epoch))
    is_up = any(host.is_up for host in hosts)
    return Report(Phase.RUNNING if is_up else Phase.ENDED, reason, tuple(hosts))


def _is_served(address: str) -> bool:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_LIMIT_S):
            return True
    except OSError:
        return False


def _uniform_reports(
    places: Sequence[Place], state: Phase, reason: str, epoch: int
) -> Iterator[HostReport]:
    for place in places:
        yield HostReport(*place, state, None, reason, epoch)


def _in_brackets(reason: str) -> str:
    return f" ({reason})" if reason else ""
