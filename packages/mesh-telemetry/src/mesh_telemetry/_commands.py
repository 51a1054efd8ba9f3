"""The command `mesh query`: asks a program of this user in SQL."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Annotated, Any, Protocol

# Whoever loads this has it: mesh-jobs, whose command this is a part of.
import typer

from mesh_telemetry._errors import QueryError, TelemetryError
from mesh_telemetry._served import Served, served_programs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["query"]


class _Door(Protocol):
    """What mesh-jobs gives to commands: `mesh_jobs.spi.CommandDoor`."""

    def print_json(self, value: Any) -> None: ...

    def print_table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None: ...


def query(
    ctx: typer.Context,
    sql: Annotated[str, typer.Argument(help="A SELECT; - to read it from the standard input.")],
    pid: Annotated[
        int | None, typer.Option(help="Which program, where several can be asked.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the answer.")] = 30.0,
    past: Annotated[
        list[str] | None,
        typer.Option(help="Ask what programs have left in this folder instead; may be repeated."),
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="Which run in those folders; the last one if left out.")
    ] = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Ask a running program in SQL: one of this user, on this machine, that serves telemetry.

    With --past, ask one that has ended, of which telemetry has kept rows in a folder.

    Which hosts have not answered is said on the standard error.
    """
    door: _Door = ctx.obj
    text = sys.stdin.read() if sql == "-" else sql
    if past:
        answer = _asked_of_past(past, run, text, timeout)
    else:
        answer = _asked(_chosen(pid), text, timeout)
    if is_json:
        door.print_json(answer)
        return
    rows = answer["rows"]
    columns = answer["columns"]
    door.print_table(columns, [[_text(row[name]) for name in columns] for row in rows])
    for failure in answer["coverage"]["failed"]:
        print(f"without host {failure['host']}: {failure['cause']}", file=sys.stderr)


def _chosen(pid: int | None) -> Served:
    found = [one for one in served_programs() if pid in (None, one.pid)]
    if not found:
        which = "no program" if pid is None else f"no program with pid {pid}"
        raise TelemetryError(f"{which} of yours serves telemetry here: have it call serve()")
    if len(found) > 1:
        programs = ", ".join(f"--pid {one.pid} ({one.program})" for one in found)
        raise TelemetryError(f"several programs can be asked: choose one, {programs}")
    return found[0]


def _asked(served: Served, sql: str, timeout: float) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{served.url}/query",
        json.dumps({"sql": sql}).encode(),
        {"Authorization": f"Bearer {served.token}", "Content-Type": "application/json"},
    )
    # Loopback: what a proxy is set for lies elsewhere.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as reply:
            answer: dict[str, Any] = json.load(reply)
            return answer
    except urllib.error.HTTPError as error:
        raise QueryError(json.load(error)["error"]["message"]) from error
    except OSError as error:
        raise TelemetryError(f"program {served.pid} does not answer: {error}") from error


def _asked_of_past(folders: list[str], run: str | None, sql: str, timeout: float) -> dict[str, Any]:
    # Here, not at the top: other commands have no use for Arrow.
    from mesh_telemetry._past import Past
    from mesh_telemetry._query_routes import plain_answer

    with Past(folders, run) as kept:
        return plain_answer(kept.query(sql, timeout=timeout))


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)
