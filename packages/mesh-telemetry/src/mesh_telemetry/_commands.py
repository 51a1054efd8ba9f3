"""The command `mesh query`, which queries a program of this user with SQL."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any, Protocol

# mesh-jobs, whose command line loads this module, depends on typer.
import typer

from mesh_telemetry._archive.archive import Archive
from mesh_telemetry._query.plain_json import plain_result
from mesh_telemetry._serve.program_client import ProgramClient
from mesh_telemetry._serve.program_files import served_program
from mesh_telemetry._serve.scopes import Scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


__all__ = ["query"]


class _CommandContext(Protocol):
    """The interface that mesh-jobs passes to commands: `mesh_jobs.spi.CommandContext`."""

    def print_json(self, value: Any) -> None: ...

    def print_table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None: ...


def query(
    ctx: typer.Context,
    sql: Annotated[
        str, typer.Argument(help="The SELECT statement; - to read it from standard input.")
    ],
    pid: Annotated[
        int | None, typer.Option(help="The pid of the program, if several serve telemetry.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the result.")] = 30.0,
    past: Annotated[
        list[str] | None,
        typer.Option(help="Query the files of past programs in this folder; can be repeated."),
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="The run to query in those folders; the last one if omitted.")
    ] = None,
    is_act: Annotated[
        bool, typer.Option("--act", help="Send the act token, for tables with local variables.")
    ] = False,
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Query a running program of this user on this machine with SQL.

    The program must serve telemetry.

    With --past, query a program that has ended, whose rows telemetry has written to a folder.

    Hosts that did not reply are reported on standard error.
    """
    command: _CommandContext = ctx.obj
    text = sys.stdin.read() if sql == "-" else sql
    if past:
        result = _query_archive(past, run, text, timeout)
    else:
        scope = Scope.ACT if is_act else Scope.READ
        with ProgramClient(served_program(pid)) as client:
            result = client.query(text, timeout_s=timeout, scope=scope)
    if is_json:
        command.print_json(result)
        return
    rows = result["rows"]
    columns = result["columns"]
    command.print_table(columns, [[_text(row[name]) for name in columns] for row in rows])
    for failure in result["coverage"]["failed"]:
        print(f"host {failure['host']} did not reply: {failure['cause']}", file=sys.stderr)


def _query_archive(folders: list[str], run: str | None, sql: str, timeout: float) -> dict[str, Any]:
    with Archive(folders, run) as kept:
        return plain_result(kept.query(sql, timeout=timeout))


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)
