"""The commands of `mesh debug`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, Protocol

# mesh-jobs, whose command line loads this module, depends on typer.
import typer

from mesh_telemetry._debug.client import Terminal, open_session
from mesh_telemetry._debug.editor import relay_editor
from mesh_telemetry._errors import DebugError
from mesh_telemetry._serve.program_client import ProgramClient
from mesh_telemetry._serve.program_files import served_program
from mesh_telemetry._serve.scopes import Scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["debug"]

_SQL = "select * from debug_sessions order by actor, rank, since_us, id"
_REPLY_TIMEOUT_S = 60.0

debug = typer.Typer(
    help="Debug a running program: actors paused at breakpoint() or at a failure, on any host.",
    no_args_is_help=True,
)

_Pid = Annotated[
    int | None, typer.Option(help="The pid of the program, if several serve telemetry.")
]
_Mesh = Annotated[
    str | None, typer.Option("--mesh", help="Only sessions of actors or processes with this name.")
]
_Ranks = Annotated[str | None, typer.Option(help="Only sessions of these ranks, such as 0,3-5.")]
_Ids = Annotated[list[str] | None, typer.Argument(help="The ids of sessions; all if omitted.")]


class _CommandContext(Protocol):
    """The interface that mesh-jobs passes to commands: `mesh_jobs.spi.CommandContext`."""

    def print_json(self, value: Any) -> None: ...

    def print_table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None: ...


@debug.command("list")
def list_sessions(
    ctx: typer.Context,
    pid: _Pid = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the paused sessions."""
    command: _CommandContext = ctx.obj
    with ProgramClient(served_program(pid)) as client:
        sessions = _sessions(client)
    if is_json:
        command.print_json(sessions)
        return
    columns = ["id", "kind", "actor", "rank", "host", "function", "location", "attached"]
    rows = [
        {**one, "location": f"{os.path.basename(one['file'])}:{one['line']}"} for one in sessions
    ]
    command.print_table(columns, [[_text(row[name]) for name in columns] for row in rows])


@debug.command()
def attach(
    session: Annotated[
        str | None, typer.Argument(help="The id of the session; optional if there is only one.")
    ] = None,
    pid: _Pid = None,
    is_kept: Annotated[
        bool, typer.Option("--keep", help="Keep the actor paused when you leave.")
    ] = False,
    is_dap: Annotated[
        bool, typer.Option("--dap", help="Attach an editor, such as VS Code.")
    ] = False,
    port: Annotated[
        int, typer.Option(help="The port for the editor on this machine; 0 for any free port.")
    ] = 5678,
) -> None:
    """Attach to a session with pdb or an editor; the code continues when you leave."""
    with ProgramClient(served_program(pid)) as client:
        chosen = session or _only_session(client)
        if is_dap:
            relay_editor(open_session(client, chosen, how="dap", is_kept=False), port)
            return
        Terminal(open_session(client, chosen, how="attach", is_kept=is_kept)).run()


@debug.command()
def cast(
    ctx: typer.Context,
    command: Annotated[str, typer.Argument(help="A pdb command, such as 'p loss'.")],
    sessions: _Ids = None,
    mesh: _Mesh = None,
    ranks: _Ranks = None,
    pid: _Pid = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for each session.")] = 30.0,
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a pdb command in several sessions; print equal replies once."""
    with ProgramClient(served_program(pid)) as client:
        found = _selected_sessions(client, sessions, mesh, ranks)
        arguments = {
            "sessions": [one["id"] for one in found],
            "command": command,
            "timeout_s": timeout,
        }
        limit_s = timeout + _REPLY_TIMEOUT_S
        done = client.post("/debug/run", arguments, timeout_s=limit_s, scope=Scope.ACT)
    replies = done["sessions"]
    if is_json:
        context: _CommandContext = ctx.obj
        context.print_json([{**one, **reply} for one, reply in zip(found, replies, strict=True)])
        return
    groups: dict[tuple[str, str], list[str]] = {}
    for one, reply in zip(found, replies, strict=True):
        groups.setdefault((reply["text"], reply["error"] or ""), []).append(_actor_of(one))
    for (text, error), names in groups.items():
        print(f"{', '.join(names)}:\n{text.rstrip() or error}")
    _error_of(replies)


@debug.command("continue")
def continue_sessions(
    sessions: _Ids = None,
    is_all: Annotated[bool, typer.Option("--all", help="Select all paused sessions.")] = False,
    mesh: _Mesh = None,
    ranks: _Ranks = None,
    pid: _Pid = None,
) -> None:
    """Let sessions continue without their breakpoints."""
    if not (sessions or is_all or mesh or ranks):
        raise DebugError("no session selected: pass session ids, --all, --mesh or --ranks")
    with ProgramClient(served_program(pid)) as client:
        found = _selected_sessions(client, sessions, mesh, ranks)
        arguments = {"sessions": [one["id"] for one in found]}
        done = client.post(
            "/debug/continue", arguments, timeout_s=_REPLY_TIMEOUT_S, scope=Scope.ACT
        )
    replies = done["sessions"]
    for one, reply in zip(found, replies, strict=True):
        print(f"{_actor_of(one)}: {reply['error'] or 'continues'}")
    _error_of(replies)


@debug.command("on-failure")
def on_failure(
    mesh: _Mesh = None,
    is_off: Annotated[bool, typer.Option("--off", help="Stop pausing at exceptions.")] = False,
    limit: Annotated[
        float, typer.Option(help="Seconds to wait for a client before delivering an exception.")
    ] = 600.0,
    pid: _Pid = None,
) -> None:
    """Pause where unhandled exceptions are raised, before the caller sees them."""
    arguments = {"mesh": mesh, "limit_s": limit, "is_on": not is_off}
    with ProgramClient(served_program(pid)) as client:
        client.post("/debug/on-failure", arguments, timeout_s=_REPLY_TIMEOUT_S, scope=Scope.ACT)


def _sessions(client: ProgramClient) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.query(_SQL, timeout_s=_REPLY_TIMEOUT_S)["rows"]
    return rows


def _only_session(client: ProgramClient) -> str:
    found = _sessions(client)
    if not found:
        raise DebugError(
            "no session is paused: call breakpoint() in the code, or run mesh debug on-failure"
        )
    if len(found) > 1:
        names = ", ".join(f"{one['id']} ({_actor_of(one)})" for one in found)
        raise DebugError(f"several sessions are paused: choose one of {names}")
    return str(found[0]["id"])


def _selected_sessions(
    client: ProgramClient, ids: list[str] | None, mesh: str | None, ranks: str | None
) -> list[dict[str, Any]]:
    found = _sessions(client)
    missing = set(ids or ()) - {one["id"] for one in found}
    if missing:
        names = ", ".join(sorted(missing))
        raise DebugError(f"no session {names}: run mesh debug list to see the paused sessions")
    wanted = None if ranks is None else _numbers(ranks)
    chosen = [
        one
        for one in found
        if (not ids or one["id"] in ids)
        and (mesh is None or mesh in (one["actor"], one["mesh"]))
        and (wanted is None or one["rank"] in wanted)
    ]
    if not chosen:
        raise DebugError(
            "no paused session matches: run mesh debug list to see the paused sessions"
        )
    return chosen


def _numbers(ranks: str) -> set[int]:
    """Return the ranks of a list such as `0,3-5`."""
    found: set[int] = set()
    for word in ranks.split(","):
        first, dash, last = word.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise DebugError(f"invalid ranks {ranks!r}: pass a list such as 0,3-5")
        found |= set(range(int(first), int(last if dash else first) + 1))
    return found


def _error_of(replies: list[dict[str, Any]]) -> None:
    failed = sum(1 for reply in replies if reply["error"])
    if failed:
        print(f"{failed} of {len(replies)} sessions did not reply", file=sys.stderr)
        raise typer.Exit(1)


def _actor_of(session: dict[str, Any]) -> str:
    return f"{session['actor'] or session['mesh']} {session['rank']}"


def _text(value: Any) -> str:
    return "" if value is None else str(value)
