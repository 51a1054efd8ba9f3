"""The commands for running jobs: wait, events and resize."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from mesh_jobs._cli.host_selection import chosen_mesh
from mesh_jobs._cli.options import Context, Json, MeshName
from mesh_jobs._cli.output import print_json, print_status, print_table
from mesh_jobs._cli.progress import shown_progress
from mesh_jobs._job.lookup import job_load

__all__ = ["events", "resize", "wait"]


def wait(
    timeout: Annotated[
        float | None, typer.Option("--timeout", "-t", help="Wait at most this many seconds.")
    ] = None,
    context: Context = None,
    is_json: Json = False,
) -> None:
    """Wait until a job has ended, show the result, and exit with its client script's status."""
    with shown_progress(is_json) as progress:
        status = job_load(context).wait(timeout, progress)
    if is_json:
        print_json(status.to_json())
    else:
        print_status(status)
    raise typer.Exit(status.exit_code or 0)


def events(context: Context = None, is_json: Json = False) -> None:
    """List the events of a job, oldest first."""
    found = job_load(context).events()
    if is_json:
        print_json([event.to_json() for event in found])
        return
    rows = (
        (
            datetime.fromtimestamp(event.at, UTC).astimezone().isoformat(" ", "seconds"),
            event.kind,
            "-" if event.mesh is None else event.mesh,
            "-" if event.rank is None else str(event.rank),
            event.text,
        )
        for event in found
    )
    print_table(("TIME", "EVENT", "MESH", "RANK", "TEXT"), rows)


def resize(
    hosts: Annotated[int, typer.Argument(help="New number of hosts of the mesh.")],
    mesh: MeshName = None,
    context: Context = None,
    is_json: Json = False,
) -> None:
    """Change the number of hosts of a mesh; the remaining hosts keep running."""
    job = job_load(context)
    status = job.resize(mesh=chosen_mesh(job, mesh), hosts=hosts).status()
    if is_json:
        print_json(status.to_json())
    else:
        print_status(status)
