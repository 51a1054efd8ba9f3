"""The commands that open connections to hosts: shell, forward and attach."""

from __future__ import annotations

import code
import runpy
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from mesh_core import ConfigError
from mesh_jobs._cli.execution import interruptible
from mesh_jobs._cli.host_selection import attached, chosen_hosts, chosen_mesh
from mesh_jobs._cli.options import (
    Context,
    Environment,
    Json,
    MeshName,
    Rank,
    Timeout,
    Workdir,
    read_environment,
)
from mesh_jobs._cli.output import print_json
from mesh_jobs._errors import JobError
from mesh_jobs._exec.exec_command import CommandRequest
from mesh_jobs._exec.execution import Execution
from mesh_jobs._exec.rank_output import RankOutput
from mesh_jobs._forward.forwarder import PortForwarder
from mesh_jobs._job.lookup import job_load
from mesh_jobs._shell.shell import shell as open_shell

if TYPE_CHECKING:
    from mesh_core import HostMesh

__all__ = ["attach", "forward", "shell"]


def shell(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND...]", help="Run it instead of a shell.")
    ] = None,
    mesh: MeshName = None,
    host: Rank = None,
    env: Environment = None,
    workdir: Workdir = None,
    timeout: Timeout = None,
    context: Context = None,
) -> None:
    """Open a shell on a host, under a terminal there."""
    variables = read_environment(env)
    with chosen_hosts(context, mesh, 0 if host is None else host, timeout) as (_, found):
        status = open_shell(found, command or None, env=variables, workdir=workdir)
    raise typer.Exit(status)


def forward(
    port: Annotated[
        str, typer.Argument(metavar="[LOCAL:]PORT", help="Remote port; LOCAL 0 is a free one.")
    ],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND...]", help="Command to run on the host.")
    ] = None,
    mesh: MeshName = None,
    host: Rank = None,
    env: Environment = None,
    workdir: Workdir = None,
    address: Annotated[str, typer.Option(help="Local address to listen on.")] = "127.0.0.1",
    timeout: Timeout = None,
    context: Context = None,
    is_json: Json = False,
) -> None:
    """Forward a local port to a host until Ctrl-C; with a command, also run the command there."""
    local, _, remote = port.rpartition(":")
    if not remote.isdecimal() or not (local or remote).isdecimal():
        raise ConfigError(f"{port!r} is not a port: write PORT or LOCAL:PORT")
    request = CommandRequest.of(command, read_environment(env), workdir) if command else None
    with chosen_hosts(context, mesh, 0 if host is None else host, timeout) as (name, found):
        procs = found.spawn_procs(name="forward")
        with PortForwarder(procs, int(remote), src_address=f"{address}:{local or remote}") as open_:
            at = open_.addresses.values()[0]
            if is_json:
                print_json({"listening": at, "mesh": name, "port": int(remote)})
            else:
                sys.stdout.write(f"{at} is port {remote} of {name}; Ctrl-C ends it\n")
                sys.stdout.flush()
            status = _serve(found, name, request) if request else _until_interrupted()
    raise typer.Exit(status)


def attach(
    program: Annotated[
        list[str] | None, typer.Argument(help="Local script to run, and its arguments.")
    ] = None,
    mesh: MeshName = None,
    timeout: Timeout = None,
    context: Context = None,
) -> None:
    """Open Python with the hosts of a job as `job`, `state`, `hosts` and by the names of meshes."""
    job = job_load(context)
    names = [one.name for one in job.spec.meshes]
    with attached(job, timeout, is_observer=False) as state:
        scope = {"job": job, "state": state, **{name: state[name] for name in state}}
        if mesh is not None or len(names) == 1:
            scope["hosts"] = state[chosen_mesh(job, mesh)]
        if program:
            _run(program, scope)
        elif sys.stdin.isatty():
            shown = ", ".join(scope)
            code.interact(banner=f"attached to {job.spec.name!r}: {shown}", local=scope, exitmsg="")
        else:
            exec(compile(sys.stdin.read(), "<stdin>", "exec"), {"__name__": "__main__", **scope})


def _run(program: list[str], scope: dict[str, object]) -> None:
    sys.argv[:] = program
    try:
        runpy.run_path(program[0], init_globals=scope, run_name="__main__")
    except FileNotFoundError as error:
        if error.filename == program[0]:
            raise JobError(f"there is no file {program[0]!r}: give a script to run") from None
        raise


def _serve(host: HostMesh, name: str, request: CommandRequest) -> int:
    execution = Execution(host, name=name)
    output = RankOutput(name, execution.extent)
    future = execution.in_background(lambda: execution.run(request, output).values()[0])
    return interruptible(execution, future)


def _until_interrupted() -> int:
    try:
        while True:
            signal.pause()
    except KeyboardInterrupt:
        return 0
