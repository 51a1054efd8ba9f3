"""The commands that run programs on ranks: exec and spmd."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from mesh_core import ConfigError
from mesh_jobs._cli.host_selection import chosen_hosts
from mesh_jobs._cli.options import (
    Context,
    Environment,
    Json,
    MeshName,
    OutputDir,
    PerHost,
    Rank,
    Timeout,
    Workdir,
    read_dims,
    read_environment,
)
from mesh_jobs._cli.output import print_json
from mesh_jobs._exec.exec_command import CommandRequest
from mesh_jobs._exec.execution import Execution
from mesh_jobs._exec.rank_output import RankOutput, show_with_prefix
from mesh_jobs._job.lookup import job_load
from mesh_jobs._spmd.launcher import SpmdRun

if TYPE_CHECKING:
    from mesh_core import Future
    from mesh_jobs._exec.rank_output import RankLine

__all__ = ["execute", "interruptible", "spmd"]

T = TypeVar("T")

MaxRestarts = Annotated[
    int,
    typer.Option(
        "--max-restarts",
        min=0,
        help="Restart all ranks on the same hosts this many times if one fails.",
    ),
]
Kill = Annotated[bool, typer.Option("--kill", help="Release the hosts afterwards.")]


def execute(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND...", help="Command to run.")
    ] = None,
    script: Annotated[
        str | None, typer.Option("--script", help="Run this local shell script; - reads stdin.")
    ] = None,
    mesh: MeshName = None,
    host: Rank = None,
    per_host: PerHost = None,
    env: Environment = None,
    workdir: Workdir = None,
    output: OutputDir = None,
    timeout: Timeout = None,
    is_killing: Kill = False,
    context: Context = None,
    is_json: Json = False,
) -> None:
    """Run a command on every rank, and exit with the first nonzero exit status.

    A single argument that contains spaces is a shell command line.
    """
    request = CommandRequest.of(_command(command or [], script), read_environment(env), workdir)
    with chosen_hosts(context, mesh, host, timeout, is_quiet=is_json) as (name, hosts):
        execution = Execution(hosts, per_host=read_dims(per_host), name=name)
        show = _show_json if is_json else show_with_prefix
        kept = RankOutput(name, execution.extent, folder=output, show=show)
        future = execution.in_background(lambda: execution.run(request, kept).values())
        statuses = interruptible(execution, future)
    if is_json:
        print_json({"exit_codes": statuses})
    _end(next((status for status in statuses if status), 0), context, is_killing)


def spmd(
    script: Annotated[str, typer.Argument(help="Script on the hosts, or with --module a module.")],
    args: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
    is_module: Annotated[
        bool, typer.Option("--module", help="Treat the script as a module, as in python -m.")
    ] = False,
    mesh: MeshName = None,
    per_host: PerHost = None,
    max_restarts: MaxRestarts = 0,
    env: Environment = None,
    workdir: Workdir = None,
    output: OutputDir = None,
    timeout: Timeout = None,
    is_killing: Kill = False,
    context: Context = None,
    is_json: Json = False,
) -> None:
    """Run a script written for torchrun on every rank.

    Options of mesh precede the script, options of the script follow it.
    """
    chosen = chosen_hosts(context, mesh, None, timeout, is_quiet=is_json, is_observer=False)
    with chosen as (name, hosts):
        run = SpmdRun(
            hosts,
            None if is_module else _script_path(script, workdir),
            args or [],
            module=script if is_module else None,
            per_host=read_dims(per_host) or 1,
            env=read_environment(env),
            workdir=workdir or (str(Path.cwd()) if is_module else None),
            name=name,
            max_restarts=max_restarts,
        )
        show = _show_json if is_json else show_with_prefix
        future = run.execution.in_background(lambda: run.run(output, show))
        status = interruptible(run.execution, future)
    if is_json:
        print_json({"exit_code": status, "failures": [one.to_json() for one in run.failures]})
    _end(status, context, is_killing)


def _script_path(script: str, workdir: str | None) -> str:
    """Return the path of a script on the hosts; a local script must have the same path there."""
    return str(Path(script).resolve()) if workdir is None and Path(script).exists() else script


def _command(words: list[str], script: str | None) -> str | list[str]:
    if (script is None) == (not words):
        raise ConfigError("give either a command or --script")
    if script is not None:
        return sys.stdin.read() if script == "-" else Path(script).read_text(encoding="utf-8")
    return words[0] if len(words) == 1 and " " in words[0] else words


def _show_json(line: RankLine) -> None:
    print_json(
        {"mesh": line.mesh, "rank": dict(line.place), "stream": line.stream, "line": line.text}
    )


def interruptible(execution: Execution, future: Future[T]) -> T:
    """Wait; the first Ctrl-C interrupts the command, the second terminates it, the third exits."""
    measures = [lambda: execution.signal(signal.SIGINT), execution.end]
    while True:
        try:
            return future.get()
        except KeyboardInterrupt:
            if not measures:
                raise
            measures.pop(0)()


def _end(status: int, context: str | None, is_killing: bool) -> None:
    if is_killing:
        job_load(context).kill()
    raise typer.Exit(status)
