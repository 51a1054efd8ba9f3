"""The commands that show and terminate processes of hosts, even while a program uses them."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mesh_core import ConfigError
from mesh_jobs._cli.control_calls import call_hosts, chosen_reports, error_lines
from mesh_jobs._cli.options import Context, Json, MeshName, Rank
from mesh_jobs._cli.output import print_json, print_table
from mesh_jobs._errors import JobError
from mesh_jobs._job.lookup import job_load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_jobs._control.client import ControlClient
    from mesh_jobs._control.host_clients import HostAnswer

__all__ = ["ps", "stacks", "stop"]

_SAMPLE_S = 0.2
_MIB = 1 << 20
_NOT_SHOWN = "machinery"
_PLACE = re.compile(r"([A-Za-z_]\w*)=([0-9]+)")
_PLACES = re.compile(rf"{_PLACE.pattern}(?:,{_PLACE.pattern})*")

HostArgument = Annotated[
    int | None, typer.Argument(metavar="[HOST]", help="Host of the mesh; all hosts by default.")
]


def ps(
    mesh: MeshName = None,
    host: Rank = None,
    is_all: Annotated[
        bool, typer.Option("--all", "-a", help="Include the processes of Mesh itself.")
    ] = False,
    context: Context = None,
    is_json: Json = False,
) -> None:
    """List the processes of each host, and the program that each serves."""
    job = job_load(context)
    reports = chosen_reports(job, mesh, host)
    answers = call_hosts(job, reports, lambda client: client.list_processes(_SAMPLE_S))
    if is_json:
        print_json([_as_json(one) for one in answers])
    else:
        print_table(
            ("MESH", "HOST", "PID", "KIND", "NAME", "CPU", "MEMORY", "RUNS", "PROGRAM"),
            (row for one in answers if one.value for row in _rows(one, is_all)),
        )
    _end(answers, is_json)


def _rows(answer: HostAnswer, is_all: bool) -> list[tuple[str, ...]]:
    now = time.time()
    return [
        (
            answer.host.mesh,
            str(answer.host.rank),
            str(one["pid"]),
            one["kind"],
            one["name"],
            f"{one['cpu'] * 100:.0f} %",
            f"{one['memory_bytes'] / _MIB:.0f} MiB",
            _duration(now - one["started"]),
            one["owner"] or "-",
        )
        for one in answer.value_to_json()["processes"]
        if is_all or one["kind"] != _NOT_SHOWN
    ]


def stacks(
    where: Annotated[
        str | None,
        typer.Argument(metavar="[HOST|DIM=N...]", help="Host of the mesh, or a rank, as gpus=3."),
    ] = None,
    pid: Annotated[int, typer.Option("--pid", "-p", min=0, help="Show only this process.")] = 0,
    mesh: MeshName = None,
    context: Context = None,
    is_json: Json = False,
) -> None:
    """Show the stack of each thread of the program's processes, without stopping them."""
    host, rank = _read_where(where)
    job = job_load(context)
    reports = chosen_reports(job, mesh, host, is_one=bool(pid))
    answers = call_hosts(job, reports, lambda client: _stacks_at(client, pid, rank))
    if is_json:
        print_json([_as_json(one) for one in answers])
    else:
        for answer in answers:
            for one in answer.value_to_json()["processes"] if answer.value else ():
                _print_stacks(answer, one)
    if rank and not any(one.error or one.value.processes for one in answers):
        raise JobError(f"no process of a program has rank {where}: mesh ps lists them")
    _end(answers, is_json)


def _read_where(where: str | None) -> tuple[int | None, dict[str, int]]:
    """Parse a host, or the rank of a process as its coordinates."""
    if where is None:
        return None, {}
    if where.isdecimal():
        return int(where), {}
    found = dict(_PLACE.findall(where))
    if not _PLACES.fullmatch(where):
        raise ConfigError(f"{where!r} is neither a host nor a rank: write N, or DIM=N,DIM=N")
    return None, {dim: int(at) for dim, at in found.items()}


def _stacks_at(client: ControlClient, pid: int, rank: dict[str, int]) -> Any:
    """Request stacks; if a rank is given, only those of its process."""
    answer = client.stacks(pid)
    for at in reversed(range(len(answer.processes))):
        name = answer.processes[at].process.name
        if not all(f"{dim}: {place}/" in name for dim, place in rank.items()):
            del answer.processes[at]
    return answer


def _print_stacks(answer: HostAnswer, value: dict[str, Any]) -> None:
    process = value["process"]
    lines = [f"{answer.where}, process {process['pid']} {process['name']}"]
    if value["problem"]:
        lines.append(f"  {value['problem']}")
    for thread in value["threads"]:
        marks = [
            mark
            for mark, is_so in (("computes", thread["is_active"]), ("has GIL", thread["holds_gil"]))
            if is_so
        ]
        name = thread["name"] or "thread"
        lines.append(f"  {name} ({', '.join([str(thread['id']), *marks])})")
        lines += [
            f"    {frame['function']} at {frame['file']}:{frame['line']}"
            for frame in thread["frames"]
        ]
    sys.stdout.write("\n".join(lines) + "\n")


def stop(
    host: HostArgument = None,
    pid: Annotated[
        int, typer.Option("--pid", "-p", min=0, help="Stop only this process, not the program.")
    ] = 0,
    grace: Annotated[
        float, typer.Option(min=0.0, max=300.0, help="Seconds until processes are killed.")
    ] = 10.0,
    mesh: MeshName = None,
    context: Context = None,
    is_json: Json = False,
) -> None:
    """Terminate what hosts run now, or one process; the hosts are kept for the next program."""
    job = job_load(context)
    reports = chosen_reports(job, mesh, host, is_one=bool(pid))
    answers = call_hosts(job, reports, lambda client: client.stop(pid, grace))
    if is_json:
        print_json([_as_json(one) for one in answers])
    else:
        for answer in answers:
            if answer.value:
                value = answer.value_to_json()
                process = value["process"]
                what = "was killed" if value["is_killed"] else "has ended"
                sys.stdout.write(
                    f"{answer.where}: process {process['pid']} {process['name']} {what} in "
                    f"{value['took_s']:.1f} s\n"
                )
    _end(answers, is_json)


def _as_json(answer: HostAnswer) -> dict[str, Any]:
    value = answer.value_to_json() if answer.value is not None else {}
    error = None
    if answer.error is not None:
        error = {"code": answer.error.code, "message": str(answer.error)}
    return {"mesh": answer.host.mesh, "rank": answer.host.rank, "error": error, **value}


def _end(answers: Sequence[HostAnswer], is_json: bool) -> None:
    """Report which hosts have not responded; exit with status 1 if there are any."""
    lost = error_lines(answers)
    if not is_json and lost:
        sys.stdout.flush()
        raise JobError("; ".join(lost))
    if lost:
        raise typer.Exit(1)


def _duration(seconds: float) -> str:
    """Format a duration for people."""
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"
