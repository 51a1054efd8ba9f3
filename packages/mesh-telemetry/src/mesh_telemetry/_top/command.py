"""The command `mesh top`, which shows a program of this user in a terminal."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Annotated, Any, Protocol

# mesh-jobs, whose command line loads this module, depends on typer.
import typer

from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._hangs.tables import hang_line
from mesh_telemetry._serve.program_client import ProgramClient
from mesh_telemetry._serve.program_files import served_program
from mesh_telemetry._top.json_snapshot import is_healthy, plain
from mesh_telemetry._top.snapshot import take_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["top"]

_REFRESH_S_MIN = 0.1


class _CommandContext(Protocol):
    """The interface that mesh-jobs passes to commands: `mesh_jobs.spi.CommandContext`."""

    def print_json(self, value: Any) -> None: ...

    def print_table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None: ...


def top(
    ctx: typer.Context,
    pid: Annotated[
        int | None, typer.Option(help="The pid of the program, if several serve telemetry.")
    ] = None,
    refresh: Annotated[float, typer.Option(help="Seconds between refreshes.")] = 1.0,
    is_once: Annotated[bool, typer.Option("--once", help="Print one snapshot and exit.")] = False,
    is_json: Annotated[bool, typer.Option("--json", help="With --once, print JSON.")] = False,
) -> None:
    """Watch a running program of this user on this machine that serves telemetry.

    With --once, exit with status 1 if there is a failure, a hang, a deadlock or an unresponsive
    host.
    """
    if is_once:
        raise typer.Exit(_once(ctx.obj, pid, is_json))
    if is_json:
        raise TelemetryError("--json requires --once: pass both")
    if not refresh >= _REFRESH_S_MIN:
        raise TelemetryError(f"--refresh {refresh} is too short: use at least {_REFRESH_S_MIN}")
    if importlib.util.find_spec("textual") is None:
        raise TelemetryError("mesh top needs textual: pip install 'torchmesh-telemetry[top]'")
    # textual is an optional dependency and takes 0.2 s, which `--once` does not need.
    from mesh_telemetry._top.app import Top  # noqa: PLC0415

    Top(pid, refresh).run()


def _once(command: _CommandContext, pid: int | None, is_json: bool) -> int:
    with ProgramClient(served_program(pid)) as client:
        snapshot = take_snapshot(client, None)
        pid = client.served.pid
    if is_json:
        command.print_json(plain(snapshot, pid))
        return 0 if is_healthy(snapshot) else 1
    columns = ("process", "mesh", "pid", "state", "cpu s", "memory MB", "messages/s")
    command.print_table(
        columns,
        [
            (
                one.name,
                f"{one.row['mesh']}[{one.row['rank']}]",
                str(one.row["pid"]),
                one.state,
                "" if one.row["cpu_s"] is None else f"{one.row['cpu_s']:.1f}",
                "" if one.row["rss_bytes"] is None else f"{one.row['rss_bytes'] / 1e6:.0f}",
                f"{one.messages_s:.1f}",
            )
            for one in snapshot.procs.values()
        ],
    )
    for row in snapshot.failures:
        print(f"failed: {row['mesh']}[{row['rank']}]: {row['reason']}")
    for cycle in snapshot.deadlocks:
        names = " -> ".join(f"{row['actor']}[{row['rank']}]" for row in [*cycle, cycle[0]])
        print(f"deadlock: {names}")
    for row in snapshot.hangs:
        print(f"hang: {hang_line(row)}")
    for host, cause in snapshot.unresponsive_hosts.items():
        print(f"host {host} did not reply: {cause}")
    return 0 if is_healthy(snapshot) else 1
