"""The commands `mesh dump` and `mesh flame`, which show what a program executes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

# mesh-jobs, whose command line loads this module, depends on typer.
import typer

from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._serve.program_client import ProgramClient
from mesh_telemetry._serve.program_files import served_program
from mesh_telemetry._serve.scopes import Scope
from mesh_telemetry._stacks.text import formatted, grouped, stacks_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["dump", "flame"]

# The time for the reply in addition to the requested duration.
_MORE_S = 60.0
_QUERIES = {
    "threads": "select proc, pid, thread_id, thread_name, owns_gil from pyspy_stack_traces",
    "frames": "select proc, pid, thread_id, frame_depth, name, filename, line from pyspy_frames",
    "variables": "select proc, pid, thread_id, frame_depth, name, repr from pyspy_local_variables",
}
Pid = Annotated[
    int | None, typer.Option(help="The pid of the program, if several serve telemetry.")
]


class _CommandContext(Protocol):
    """The interface that mesh-jobs passes to commands: `mesh_jobs.spi.CommandContext`."""

    def print_json(self, value: Any) -> None: ...

    def print_table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None: ...


def dump(
    ctx: typer.Context,
    proc: Annotated[
        list[str] | None, typer.Option(help="Only this process, such as 0.3; can be repeated.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(help="Only processes that match an SQL condition over procs.")
    ] = None,
    is_all: Annotated[
        bool, typer.Option("--all", help="Include threads that run only Python and Mesh.")
    ] = False,
    native: Annotated[bool, typer.Option("--native", help="Include native frames.")] = False,
    has_locals: Annotated[bool, typer.Option("--locals", help="Include local variables.")] = False,
    pid: Pid = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for all processes.")] = 10.0,
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the stacks of all threads of a running program, equal stacks once.

    py-spy reads them from outside, also if the interpreter hangs. Processes whose stacks cannot
    be read are reported on standard error.
    """
    if proc and where:
        raise TelemetryError("--proc and --where are mutually exclusive: pass only one")
    wanted = {"where": proc or where, "native": native, "locals": has_locals, "timeout": timeout}
    with ProgramClient(served_program(pid)) as client:
        made = client.post("/pyspy/dump", wanted, timeout_s=timeout + _MORE_S, scope=Scope.ACT)
        rows = {
            name: client.query(
                f"{sql} where dump_id = $1",
                [made["dump_id"]],
                timeout_s=_MORE_S,
                scope=Scope.ACT,
            )["rows"]
            for name, sql in _QUERIES.items()
        }
    if is_json:
        command: _CommandContext = ctx.obj
        command.print_json(made | rows)
        return
    stacks = stacks_of(**rows)
    shown = [stack for stack in stacks if is_all or stack.is_user_code]
    for group in grouped(shown):
        print("\n".join(formatted(group)), end="\n\n")
    if len(shown) < len(stacks):
        left = len(stacks) - len(shown)
        print(f"{left} idle threads are hidden: pass --all to show them", file=sys.stderr)
    for failure in made["failed"]:
        print(f"process {failure['proc']} is missing: {failure['cause']}", file=sys.stderr)
    for failure in made["hosts_failed"]:
        print(f"host {failure['host']} is missing: {failure['cause']}", file=sys.stderr)


def flame(
    proc: Annotated[str, typer.Argument(metavar="PROC", help="The process, such as 0.3.")],
    seconds: Annotated[float, typer.Option(help="Seconds to record.")] = 5.0,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="The SVG file to write.")] = None,
    native: Annotated[bool, typer.Option("--native", help="Include native frames.")] = False,
    idle: Annotated[bool, typer.Option("--idle", help="Include waiting threads.")] = False,
    pid: Pid = None,
) -> None:
    """Record the stacks of a process, and write a flame graph to open in a browser."""
    wanted = {"proc": proc, "seconds": seconds, "native": native, "idle": idle, "rows": True}
    with ProgramClient(served_program(pid)) as client:
        made = client.post("/pyspy/flame", wanted, timeout_s=seconds + _MORE_S, scope=Scope.ACT)
    path = out or Path(f"flame-{proc}.svg")
    try:
        path.write_text(made["svg"])
    except OSError as error:
        raise TelemetryError(f"cannot write {str(path)!r} ({error.strerror})") from error
    print(f"{path}: {sum(row['samples'] for row in made['rows'])} samples")
