"""The command `mesh why`, which names the ranks that keep a program waiting."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

# mesh-jobs, whose command line loads this module, depends on typer.
import typer

from mesh_telemetry._serve.program_client import ProgramClient
from mesh_telemetry._serve.program_files import served_program

__all__ = ["why"]

_REPLY_S = 30.0


class _CommandContext(Protocol):
    """The interface that mesh-jobs passes to commands: `mesh_jobs.spi.CommandContext`."""

    def print_json(self, value: Any) -> None: ...


def why(
    ctx: typer.Context,
    has_stacks: Annotated[
        bool, typer.Option("--stacks", help="Print the whole stacks of the ranks.")
    ] = False,
    pid: Annotated[
        int | None, typer.Option(help="The pid of the program, if several serve telemetry.")
    ] = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show which ranks keep a running program waiting, where they are, and why.

    For a collective of torch.distributed, these are the ranks that have not joined it, and ranks
    that are slower than the others; for a call, the actor at the end of the chain of waits. The
    program must serve telemetry.
    """
    with ProgramClient(served_program(pid)) as client:
        found = client.get("/why", timeout_s=_REPLY_S)
    if is_json:
        command: _CommandContext = ctx.obj
        command.print_json(found)
        return
    for hang in found["hangs"]:
        print(hang["text"])
        for culprit in hang["culprits"] if has_stacks else ():
            print(f"  stack of rank {culprit['rank']}:")
            print("".join(f"    {line}\n" for line in culprit["stack"]), end="")
    for slow in found["slow_ranks"]:
        print(slow["text"])
    if not found["hangs"] and not found["slow_ranks"]:
        print("no rank keeps another one waiting")
