"""The command doctor, which checks the network of a job."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from mesh_core import Credentials
from mesh_jobs._backend.report import THIS_HOST
from mesh_jobs._cli.diagnostic_plugins import examine_by
from mesh_jobs._cli.host_health import HostHealth, host_health
from mesh_jobs._cli.host_selection import attached
from mesh_jobs._cli.options import Context, Json, MeshName, Timeout
from mesh_jobs._cli.output import print_json, print_table
from mesh_jobs._diagnostics.diagnosis import Diagnosis, Finding, examine
from mesh_jobs._diagnostics.reachability import check_reachability
from mesh_jobs._job.lookup import job_load

if TYPE_CHECKING:
    from mesh_jobs._job.job import Job

__all__ = ["doctor"]

_MEGABYTE = 1 << 20
_EXPIRY_WARNING = timedelta(hours=12)


def doctor(
    what: Annotated[
        str | None,
        typer.Argument(help="Run this check instead, such as rdma; packages add checks."),
    ] = None,
    mesh: MeshName = None,
    megabytes: Annotated[
        int, typer.Option(min=0, help="Send this much between two hosts each; 0 sends nothing.")
    ] = 16,
    timeout: Timeout = None,
    context: Context = None,
    is_json: Json = False,
) -> None:
    """Check each pair of hosts, and report problems; exits with status 1 if there are any."""
    job = job_load(context)
    names = [job.spec.mesh(mesh).name] if mesh else [one.name for one in job.spec.meshes]
    if what is not None:
        examine_by(what, job, names, timeout, is_json=is_json)
    trust = list(_credential_findings(job))
    hosts = [host for host in job.status().hosts if host.mesh in names]
    reached = check_reachability(hosts)
    lost = [
        Finding(f"{one.host.mesh} host {one.host.rank}", one.problem, one.advice)
        for one in reached
        if one.problem
    ]
    health = host_health(job, [one.host for one in reached if not one.problem])
    of_job = [*trust, *lost, *(one.finding for one in health if one.finding)]
    owners = sorted({one.owner for one in health if one.owner})
    if lost or owners:
        # If a program uses the hosts, the checks that need idle hosts are skipped.
        _print_all(is_json, of_job, [], health, owners)
    with attached(job, timeout, is_quiet=is_json) as state:
        found = [examine(name, state[name], payload_len=megabytes * _MEGABYTE) for name in names]
    _print_all(is_json, of_job, found, health, [])


def _print_all(
    is_json: bool,
    of_job: list[Finding],
    found: list[Diagnosis],
    health: list[HostHealth],
    owners: list[str],
) -> NoReturn:
    """Print the findings, and exit."""
    if is_json:
        job_findings = [
            {"where": one.where, "what": one.what, "advice": one.advice} for one in of_job
        ]
        hosts = [one.to_json() for one in health]
        print_json(
            {"job": job_findings, "hosts": hosts, "meshes": [one.to_json() for one in found]}
        )
    else:
        if owners:
            _print_health(health, owners)
        for one in found:
            _print(one)
        _print_findings([*of_job, *(finding for one in found for finding in one.findings)])
    raise typer.Exit(1 if of_job or any(one.findings for one in found) else 0)


def _credential_findings(job: Job) -> list[Finding]:
    """Check the credentials of a job."""
    if all(host.address == THIS_HOST for host in job.status().hosts):
        return []  # The job has no connections to other machines.
    credentials = Credentials.load(f"{job.folder}/keys/controller")
    left = credentials.expires_at - datetime.now(UTC)
    if left > _EXPIRY_WARNING:
        return []
    what = (
        "have expired" if left < timedelta() else f"expire in {left.total_seconds() / 60:.0f} min"
    )
    return [Finding("job", f"its credentials {what}", "kill the job, and apply it again")]


def _print_health(health: list[HostHealth], owners: list[str]) -> None:
    labels = {True: "healthy", False: "leaving", None: "not known"}
    rows = (
        (one.host.mesh, str(one.host.rank), labels[one.is_healthy], one.owner or "-")
        for one in health
    )
    print_table(("MESH", "HOST", "HEALTH", "PROGRAM"), rows)
    sys.stdout.write(
        f"\nused by {', '.join(owners)}: pairs of hosts can be checked after it has ended\n"
    )


def _print(found: Diagnosis) -> None:
    print_table(
        ("MESH", "HOST", "NAME", "PYTHON", "MESH-CORE", "CLOCK"),
        (
            (found.mesh, str(at), host.name, host.python, host.mesh, f"{ahead * 1e3:+.1f} ms")
            for at, (host, ahead) in enumerate(zip(found.hosts, found.clock_ahead_s, strict=True))
        ),
    )
    if not found.pairs:
        return
    sys.stdout.write("\n")
    print_table(
        ("FROM", "TO", "NAME THERE", "CALL", "BANDWIDTH"),
        (
            (
                str(one),
                str(other),
                ", ".join(result.resolved) or "not known",
                "-" if result.latency_s is None else f"{result.latency_s * 1e3:.2f} ms",
                "-" if result.bytes_per_s is None else f"{result.bytes_per_s / 1e6:.0f} MB/s",
            )
            for (one, other), result in found.pairs.items()
        ),
    )


def _print_findings(findings: list[Finding]) -> None:
    sys.stdout.write("\n" if findings else "\nno problems found\n")
    for finding in findings:
        sys.stdout.write(f"{finding.where}: {finding.what}: {finding.advice}\n")
