"""The command that runs a client script inside a job: run."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from mesh_jobs._backend.report import Phase
from mesh_jobs._cli.allocation import Replace
from mesh_jobs._cli.options import Json
from mesh_jobs._cli.output import print_json, print_status
from mesh_jobs._cli.target import load_target
from mesh_jobs._errors import JobError, SchedulerUnreachable

if TYPE_CHECKING:
    from mesh_jobs._job.job import Job
    from mesh_jobs._job.status import JobStatus

__all__ = ["run"]

_LATENESS = 0.1
_FIRST_PAUSE_S = 0.05
_LOG_PAUSE_MAX_S = 0.5
_PAUSE_MAX_S = 2.0


def run(
    script: Annotated[str, typer.Argument(help="Python script, or -m and a module.")],
    args: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
    target: Annotated[
        str, typer.Option("--job", "-j", help="FILE.py[:NAME] or MODULE that defines the job.")
    ] = "job.py",
    is_module: Annotated[
        bool, typer.Option("--module", help="Treat the script as a module, as in python -m.")
    ] = False,
    replace: Replace = False,
    is_following: Annotated[
        bool, typer.Option("--follow/--detach", help="Print its output, and exit with its status.")
    ] = True,
    is_json: Json = False,
) -> None:
    """Run a script inside a new job, and exit with its exit status; the job ends with the script.

    Options of mesh precede the script, options of the script follow it. Ctrl-C leaves it running.
    """
    job = load_target(target)
    what = ["-m", script] if is_module else [script]
    job.apply([*what, *(args or ())], replace=replace)
    if not is_following:
        print_status(job.status())
        return
    try:
        status = _follow(job, is_quiet=is_json)
    except KeyboardInterrupt:
        sys.stderr.write(
            "mesh: the script keeps running: see mesh status, and mesh kill to end it\n"
        )
        raise
    if is_json:
        print_json(status.to_json())
    if status.exit_code is None:
        raise JobError(f"the job ended before its script ({status.reason}): see mesh events")
    raise typer.Exit(status.exit_code)


def _follow(job: Job, *, is_quiet: bool) -> JobStatus:
    """Print the output of the script until the job has ended."""
    at, began = 0, time.monotonic()
    last_output_at, last_status_at = began, 0.0
    while True:
        now = time.monotonic()
        status: JobStatus | None = None
        try:
            # The scheduler is queried less often than the log.
            if now - last_status_at >= _pause_s(now - began):
                status, last_status_at = job.status(), now
            # If the script has ended, its complete output is available at this time.
            while piece := job.client_output(at):
                at, last_output_at = at + len(piece), now
                if not is_quiet:
                    sys.stdout.buffer.write(piece)
                    sys.stdout.buffer.flush()
        except SchedulerUnreachable:
            status = None  # No response does not mean that the job has ended.
        if status is not None and status.state is Phase.ENDED:
            return status
        time.sleep(min(_pause_s(now - last_output_at), _LOG_PAUSE_MAX_S))


def _pause_s(waited_s: float) -> float:
    """Return the poll interval, which grows with the time waited."""
    return min(max(waited_s * _LATENESS, _FIRST_PAUSE_S), _PAUSE_MAX_S)
