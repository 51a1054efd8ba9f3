"""The command logs, which shows or follows the output of workers."""

from __future__ import annotations

import queue
import sys
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from mesh_jobs._cli.control_calls import access, chosen_reports, is_control_here
from mesh_jobs._cli.host_selection import chosen_mesh
from mesh_jobs._cli.options import Context, Json, MeshName, Rank
from mesh_jobs._cli.output import print_json
from mesh_jobs._control.control_error import ControlError
from mesh_jobs._errors import JobError
from mesh_jobs._job.lookup import job_load

if TYPE_CHECKING:
    from mesh_jobs._backend.report import HostReport
    from mesh_jobs._job.job import Job

__all__ = ["logs"]

# The limit of lines that are read ahead of the output.
_WAITING_MAX = 1000

# A line of a host, and whether it is from standard error; None after the last line.
LogEntry = tuple["HostReport", str, bool] | None


def logs(
    mesh: MeshName = None,
    host: Rank = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Maximum of lines.")] = 100,
    is_following: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the output of all hosts until Ctrl-C.")
    ] = False,
    is_of_client: Annotated[
        bool, typer.Option("--client", help="Show the output of the client script.")
    ] = False,
    context: Context = None,
    is_json: Json = False,
) -> None:
    """Show the last output of a host's worker."""
    job = job_load(context)
    if is_of_client:
        _show_lines(job.client_logs(lines), {}, is_json)
        return
    if is_following:
        _follow(job, chosen_reports(job, mesh, host), lines, is_json)
        return
    name, at = chosen_mesh(job, mesh), host or 0
    size = job.spec.mesh(name).hosts
    if not 0 <= at < size:
        raise JobError(f"mesh {name!r} has no host {at}: give 0 to {size - 1}")
    _show_lines(job.logs(name, at, lines), {"mesh": name, "host": at}, is_json)


def _show_lines(text: str, about: dict[str, object], is_json: bool) -> None:
    if is_json:
        print_json({**about, "lines": text.splitlines()})
    elif text:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")


def _follow(job: Job, hosts: list[HostReport], lines: int, is_json: bool) -> None:
    """Print lines as they arrive, until all logs have ended."""
    received: queue.Queue[LogEntry] = queue.Queue(_WAITING_MAX)
    for host in hosts:
        threading.Thread(target=_read, args=(job, host, lines, received), daemon=True).start()
    left = len(hosts)
    try:
        while left:
            one = received.get()
            if one is None:
                left -= 1
            else:
                _show(*one, is_json=is_json)
    except KeyboardInterrupt:
        return


def _show(host: HostReport, text: str, is_error: bool, *, is_json: bool) -> None:
    if is_json:
        stream = "stderr" if is_error else "stdout"
        print_json({"mesh": host.mesh, "host": host.rank, "stream": stream, "line": text})
        return
    stream_there = sys.stderr if is_error else sys.stdout
    stream_there.write(f"[{host.mesh} hosts={host.rank}] {text}\n")
    stream_there.flush()


def _read(job: Job, host: HostReport, lines: int, received: queue.Queue[LogEntry]) -> None:
    """Read the log of one host to its end, from the worker or else from the backend."""
    try:
        why = _read_from_worker(job, host, lines, received)
        if why is not None:
            received.put((host, f"mesh: cannot follow: {why}; its stored output:", True))
            for line in job.logs(host.mesh, host.rank, lines).splitlines():
                received.put((host, line, False))
    except Exception as error:
        received.put((host, f"mesh: {error}", True))
    finally:
        received.put(None)


def _read_from_worker(
    job: Job, host: HostReport, lines: int, received: queue.Queue[LogEntry]
) -> str | None:
    """Read the log from the worker; return why that failed, or None if it succeeded."""
    if not is_control_here():
        return "grpcio is not installed here"
    is_begun = False
    try:
        with access(job).open(host) as client:
            number = 0
            for line in client.logs(lines, follow=True):
                if number and line.number != number + 1:
                    lost = line.number - number - 1
                    received.put(
                        (host, f"mesh: {lost} lines arrived too fast and were skipped", True)
                    )
                number, is_begun = line.number, True
                received.put((host, line.text, line.is_error))
    except ControlError as error:
        if not is_begun:
            return str(error)
        received.put((host, f"mesh: the worker is lost: {error}", True))
    return None
