"""The commands that allocate, show and release a job."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mesh_jobs._backend.report import Phase
from mesh_jobs._cli.options import Context, Json, Timeout
from mesh_jobs._cli.output import print_json, print_status, print_table
from mesh_jobs._cli.progress import shown_progress
from mesh_jobs._cli.target import load_target
from mesh_jobs._errors import JobError, SchedulerUnreachable
from mesh_jobs._job.lookup import job_list, job_load

__all__ = ["Replace", "apply", "contexts", "kill", "plan", "status"]

Target = Annotated[
    str, typer.Argument(help="FILE.py or MODULE that defines the job, as FILE.py[:NAME].")
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Release a job that differs, and request it again.")
]


def apply(
    target: Target = "job.py",
    replace: Replace = False,
    client_script: Annotated[
        str | None,
        typer.Option("--client-script", help="Run this script inside; the job ends with it."),
    ] = None,
    is_waiting: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the hosts are up.")
    ] = True,
    timeout: Timeout = None,
    is_json: Json = False,
) -> None:
    """Request the hosts of a job; does nothing if they are already allocated."""
    job = load_target(target)
    job.apply(client_script, replace=replace)
    # The hosts of a batch job are reserved for its script.
    if is_waiting and client_script is None:
        with shown_progress(is_json) as progress:
            found = job.wait_up(timeout, progress)
    else:
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
    """Show the current state of a job and its hosts."""
    found = job_load(context).status()
    if is_json:
        print_json(found.to_json())
    else:
        print_status(found)


def kill(context: Context = None, is_json: Json = False) -> None:
    """Release the hosts of a job."""
    job = job_load(context)
    job.kill()
    if is_json:
        print_json({"killed": job.context, "folder": job.folder})
    else:
        sys.stdout.write(f"the hosts of {job.spec.name!r} were released\n")


def contexts(is_json: Json = False) -> None:
    """List the jobs that are applied in this folder, and all jobs with a named context."""
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
