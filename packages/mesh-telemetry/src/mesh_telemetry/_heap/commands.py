"""The command `mesh heap`, which shows what a process has allocated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

# mesh-jobs, whose command line loads this module, depends on typer.
import typer

from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._serve.program_client import ProgramClient
from mesh_telemetry._serve.program_files import served_program
from mesh_telemetry._serve.scopes import Scope

__all__ = ["heap"]

# The time for the reply in addition to the requested duration.
_MORE_S = 90.0
_SHOWN_MAX = 20
_MIB = 1 << 20


def heap(
    ctx: typer.Context,
    proc: Annotated[str, typer.Argument(metavar="PROC", help="The process, such as 0.3.")],
    seconds: Annotated[float, typer.Option(help="Seconds to track allocations.")] = 5.0,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="The HTML file to write.")] = None,
    peak: Annotated[
        bool, typer.Option("--peak", help="Show the maximum, and not what is left at the end.")
    ] = False,
    native: Annotated[bool, typer.Option("--native", help="Include native frames.")] = False,
    objects: Annotated[
        bool, typer.Option("--objects", help="Track each Python object; this is slower.")
    ] = False,
    pid: Annotated[
        int | None, typer.Option(help="The pid of the program, if several serve telemetry.")
    ] = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print all rows as JSON.")] = False,
) -> None:
    """Track the allocations of a process with memray, and write a flame graph of what is left.

    Only memory that is allocated while the command runs is shown.
    """
    wanted = {"proc": proc, "seconds": seconds, "peak": peak, "native": native, "objects": objects}
    with ProgramClient(served_program(pid)) as client:
        made = client.post(
            "/memray/heap", wanted | {"rows": True}, timeout_s=seconds + _MORE_S, scope=Scope.ACT
        )
    path = out or Path(f"heap-{proc}.html")
    try:
        path.write_text(made["html"])
    except OSError as error:
        raise TelemetryError(f"cannot write {str(path)!r} ({error.strerror})") from error
    rows: list[dict[str, Any]] = made["rows"]
    if is_json:
        ctx.obj.print_json(rows)
        return
    for row in rows[:_SHOWN_MAX]:
        place = f"{row['function']} ({row['file']}:{row['line']})"
        print(f"{row['bytes'] / _MIB:10.1f} MiB {row['allocations']:>9}  {place}")
    total = sum(row["bytes"] for row in rows)
    print(f"{path}: {total / _MIB:.1f} MiB in {len(rows)} places")
