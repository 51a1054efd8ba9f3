"""The commands about a job as a whole: ask for it, look at it, give it back."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mesh_jobs._cli.chosen import attached, chosen_mesh
from mesh_jobs._cli.options import Context, Json, MeshName, Timeout
from mesh_jobs._cli.show import print_json, print_status, print_table
from mesh_jobs._cli.target import load_target
from mesh_jobs._errors import JobError, SchedulerUnreachable
from mesh_jobs._job import job_list, job_load
from mesh_jobs._report import Phase

__all__ = ["apply", "contexts", "kill", "logs", "plan", "status"]

Target = Annotated[
    str, typer.Argument(help="FILE.py or MODULE that defines the job, as FILE.py[:NAME].")
]


def apply(
    target: Target = "job.py",
    replace: Annotated[
        bool, typer.Option("--replace", help="Give back what differs, and ask anew.")
    ] = False,
    is_waiting: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the hosts are up.")
    ] = True,
    timeout: Timeout = None,
    is_json: Json = False,
) -> None:
    """Ask for the hosts of a job; nothing is asked twice."""
    job = load_target(target)
    job.apply(replace=replace)
    if is_waiting:
        with attached(job, timeout, is_quiet=is_json):
            pass  # They answer, and that is all that is wanted of them now.
    found = job.status()
    if is_json:
        print_json(found.to_json())
    else:
        print_status(found)


def plan(target: Target = "job.py", is_json: Json = False) -> None:
    """Show what apply would submit."""
    text = load_target(target).plan()
    if is_json:
        print_json({"plan": text})
    else:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")


def status(context: Context = None, is_json: Json = False) -> None:
    """Show a job and its hosts as they are now."""
    found = job_load(context).status()
    if is_json:
        print_json(found.to_json())
    else:
        print_status(found)


def kill(context: Context = None, is_json: Json = False) -> None:
    """Give the hosts of a job back."""
    job = job_load(context)
    job.kill()
    if is_json:
        print_json({"killed": job.context, "folder": job.folder})
    else:
        sys.stdout.write(f"the hosts of {job.spec.name!r} were given back\n")


def logs(
    mesh: MeshName = None,
    host: Annotated[int, typer.Option("--host", "-H", help="Which host of the mesh.")] = 0,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many at most.")] = 100,
    context: Context = None,
    is_json: Json = False,
) -> None:
    """Show what the worker of a host has printed last."""
    job = job_load(context)
    name = chosen_mesh(job, mesh)
    size = job.spec.mesh(name).hosts
    if not 0 <= host < size:
        raise JobError(f"mesh {name!r} has no host {host}: give 0 to {size - 1}")
    text = job.logs(name, host, lines)
    if is_json:
        print_json({"mesh": name, "host": host, "lines": text.splitlines()})
    elif text:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")


def contexts(is_json: Json = False) -> None:
    """List the jobs that are applied here, and those with a name anywhere."""
    rows = []
    for job in job_list():
        try:
            found = job.status()
            state, reason = found.state.value, found.reason
        except SchedulerUnreachable as error:
            state, reason = "unknown", str(error)
        except JobError as error:
            state, reason = Phase.ENDED.value, str(error)
        rows.append((job.context, state, job.folder, reason))
    if is_json:
        columns = ("context", "state", "folder", "reason")
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        print_table(("CONTEXT", "STATE", "FOLDER", "REASON"), rows)
