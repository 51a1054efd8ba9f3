"""The tabs with details of an entry: their queries and their text."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from rich.text import Text

from mesh_telemetry._top.snapshot import RATE_S, sql_list
from mesh_telemetry._top.stack_lines import stack_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_telemetry._serve.program_client import ProgramClient
    from mesh_telemetry._top.entries import Entry, TreeModel
    from mesh_telemetry._top.snapshot import Row

    #: Queries details of an entry. The last argument is a filter for lines, if lines are shown.
    Detail = Callable[[ProgramClient, TreeModel, Entry, str], Text]

__all__ = ["DETAILS"]

_ROWS_MAX = 50
_LINES_MAX = 500
_PROCS_MAX = 64


def info(client: ProgramClient, model: TreeModel, entry: Entry, wanted: str) -> Text:
    """Return the attributes, status changes and failures of an entry."""
    text = Text()
    text.append(f"{entry.title}  {entry.note}\n\n", "bold")
    for name, value in entry.row.items():
        if value is not None:
            text.append(f"{name:<20}", "dim")
            text.append(f"{_plain(name, value)}\n")
    if entry.kind == "actor":
        sql = """
            select timestamp_us, new_status, reason from actor_status_events
            where proc = $1 and mesh_id = $2 order by timestamp_us desc limit 20
        """
        rows = client.query(sql, [entry.row["proc"], entry.row["mesh_id"]])["rows"]
        text.append("\nstatus\n", "bold")
        for row in rows:
            reason = f"  {row['reason']}" if row["reason"] else ""
            text.append(f"{_clock(row)}  {row['new_status']}{reason}\n")
    for failure in model.snapshot.failures:
        if _is_of(model, entry, failure):
            _append_failure(text, failure)
    return text


def _append_failure(text: Text, failure: Row) -> None:
    text.append(f"\nfailure of {failure['mesh']}[{failure['rank']}]", "bold red")
    text.append(f"  {_clock(failure)}\n{failure['reason']}\n")
    for cause in (failure["cause"] or "").splitlines():
        text.append(f"  caused by {cause}\n")
    if failure["log_tail"]:
        text.append("last output\n", "dim")
        text.append("".join(f"  | {line}\n" for line in failure["log_tail"].splitlines()))


def _is_of(model: TreeModel, entry: Entry, failure: Row) -> bool:
    row = entry.row
    match entry.kind:
        case "host":
            return bool(failure["proc"].partition(".")[0] == entry.key[1])
        case "proc":
            is_here = failure["kind"] == "actor" and failure["proc"] == row["proc"]
            return is_here or (failure["mesh_id"], failure["rank"]) == (row["mesh_id"], row["rank"])
        case "actor":
            return (failure["mesh_id"], failure["rank"]) == (row["mesh_id"], row["rank"]) or (
                failure["kind"] == "proc" and failure["proc"] == row["proc"]
            )
        case "procs" | "mesh":
            return bool(failure["mesh_id"] == row["id"])
    return False


def messages(client: ProgramClient, model: TreeModel, entry: Entry, wanted: str) -> Text:
    """Return the rates of incoming messages by mesh, and the latest messages."""
    where, params = _where(model, entry, is_mesh_known=True)
    since = f"timestamp_us > ${len(params) + 1}"
    sql = f"""
        select mesh_id, count(*) as n, sum(bytes) as bytes from messages
        where {where} and {since} group by mesh_id order by n desc limit 20
    """
    rates = client.query(sql, [*params, int((time.time() - RATE_S) * 1e6)])["rows"]
    sql = f"select * from messages where {where} order by timestamp_us desc limit {_ROWS_MAX}"
    rows = client.query(sql, params)["rows"]
    text = Text()
    text.append(f"{'MESH':<24}{'MSG/S':>9}{'BYTES/S':>12}\n", "bold")
    for row in rates:
        name = _mesh_name(model, row["mesh_id"])
        text.append(f"{name:<24}{row['n'] / RATE_S:>9.1f}{row['bytes'] / RATE_S:>12.0f}\n")
    if not rates:
        text.append(f"none in the last {RATE_S:.0f} s\n", "dim")
    text.append(f"\n{'LAST':<14}{'TO':<24}{'FROM':<7}{'BYTES':>8}  ENDPOINT\n", "bold")
    for row in rows:
        # The row has the rank that was called, which may refer to a slice of the mesh.
        to = f"{_mesh_name(model, row['mesh_id'])} in {row['proc']}"
        endpoint = row.get("endpoint") or ""
        text.append(
            f"{_clock(row):<14}{to:<24}{row['from_proc']:<7}{row['bytes']:>8}  {endpoint}\n"
        )
    return text


def logs(client: ProgramClient, model: TreeModel, entry: Entry, wanted: str) -> Text:
    """Return the last lines that its processes have printed."""
    where, params = _where(model, entry)
    if wanted:
        where += f" and lower(line) like ${len(params) + 1}"
        params.append(f"%{wanted.lower()}%")
    sql = f"""
        select timestamp_us, mesh, rank, stream, line from logs where {where}
        order by timestamp_us desc limit {_LINES_MAX}
    """
    text = Text()
    for row in reversed(client.query(sql, params)["rows"]):
        text.append(f"{_clock(row)} ", "dim")
        text.append(f"{row['mesh']}[{row['rank']}] ", "cyan")
        # Printed lines may contain any control characters.
        line = "".join(one if one.isprintable() or one == "\t" else "�" for one in row["line"])
        text.append(line + "\n", "yellow" if row["stream"] == "stderr" else "")
    return text if text else Text("no lines", "dim")


def stacks(client: ProgramClient, model: TreeModel, entry: Entry, wanted: str) -> Text:
    """Return the current stacks of its processes, with the frames of the program first."""
    where, params = _where(model, entry)
    sql = f"""
        select proc, thread, thread_id, task, task_id, depth, function, file, line from stacks
        where {where} order by proc, thread, thread_id, task_id nulls first, depth limit 2000
    """
    text = stack_text(client.query(sql, params)["rows"])
    return text if text else Text("no process replied", "dim")


def waits(client: ProgramClient, model: TreeModel, entry: Entry, wanted: str) -> Text:
    """Return all waits of the program, deadlocks first."""
    snapshot = model.snapshot
    text = Text()
    for cycle in snapshot.deadlocks:
        names = [f"{row['actor']}[{row['rank']}]" for row in [*cycle, cycle[0]]]
        text.append(f"deadlock: {' waits for '.join(names)}\n", "bold magenta")
        for row in cycle:
            text.append(f"  {row['actor']}[{row['rank']}] in {row['running']} ")
            text.append(f"waits for {row['endpoint']} of {row['for_actor']}[{row['for_rank']}]\n")
    text.append(f"\n{'CALLER':<20}{'IN':<12}{'WAITS FOR':<26}{'SECONDS':>8}\n", "bold")
    for row in snapshot.waits[: _ROWS_MAX * 4]:
        who = f"a caller in {row['proc']}"
        if row["actor"] is not None:
            who = f"{row['actor']}[{row['rank']}]"
        elif row["proc"] == "0.0":
            who = "the program"
        whom = row["for_actor"] or _mesh_name(model, row["for_mesh_id"])
        whom = f"{whom}[{row['for_rank']}]" if row["for_rank"] is not None else f"{whom}"
        endpoint = f".{row['endpoint']}" if row["endpoint"] else ""
        waited = "" if row["waited_ms"] is None else f"{row['waited_ms'] / 1e3:.1f}"
        text.append(f"{who:<20}{row['running'] or '':<12}{whom + endpoint:<26}{waited:>8}\n")
    if not snapshot.waits:
        text.append("no pending calls\n", "dim")
    return text


def spans(client: ProgramClient, model: TreeModel, entry: Entry, wanted: str) -> Text:
    """Return the latest spans with their durations."""
    where, params = _where(model, entry)
    if entry.kind == "actor":
        # Actor ids exceed the range of SQL integers.
        where += f" and actor_id = cast(${len(params) + 1} as bigint unsigned)"
        params.append(str(entry.row["id"]))
    sql = f"""
        select s.timestamp_us, s.name, s.fields_json, s.proc, e.timestamp_us as ended_us, e.is_error
        from (select * from spans where {where} order by timestamp_us desc limit {_ROWS_MAX}) s
        left join (select * from span_events where event_type = 'close') e
        on e.id = s.id and e.process_id = s.process_id order by s.timestamp_us desc
    """
    text = Text(f"{'STARTED':<14}{'MS':>9}  {'NAME':<20} FIELDS\n", "bold")
    rows = client.query(sql, params)["rows"]
    for row in rows:
        took = "running"
        if row["ended_us"] is not None:
            took = f"{(row['ended_us'] - row['timestamp_us']) / 1e3:.2f}"
        fields = "" if row["fields_json"] == "{}" else row["fields_json"]
        line = f"{_clock(row):<14}{took:>9}  {row['name']:<20} {fields}\n"
        text.append(line, "red" if row["is_error"] else "not bold")
    return text if rows else Text("no spans", "dim")


#: The tabs in order.
DETAILS: dict[str, Detail] = {
    "Info": info,
    "Messages": messages,
    "Logs": logs,
    "Stacks": stacks,
    "Waits": waits,
    "Spans": spans,
}


def _where(
    model: TreeModel, entry: Entry, *, is_mesh_known: bool = False
) -> tuple[str, list[object]]:
    """Return an SQL condition for the rows of an entry: by process, and also by mesh if known."""
    row = entry.row
    match entry.kind:
        case "host":
            return "proc like $1", [f"{entry.key[1]}.%"]
        case "proc":
            return "proc = $1", [row["proc"]]
        case "actor" if is_mesh_known:
            return "proc = $1 and mesh_id = $2", [row["proc"], row["mesh_id"]]
        case "actor":
            return "proc = $1", [row["proc"]]
        case "mesh" if is_mesh_known:
            return "mesh_id = $1", [row["id"]]
        case "mesh" | "procs":
            return f"proc in ({sql_list(model.snapshot.procs_of(row['id'])[:_PROCS_MAX])})", []
    return "false", []


def _mesh_name(model: TreeModel, number: int) -> str:
    mesh = model.snapshot.meshes.get(number)
    return f"port {number}" if mesh is None else mesh.name


def _clock(row: Row) -> str:
    at = row["timestamp_us"]
    return time.strftime("%H:%M:%S", time.localtime(at / 1e6)) + f".{at // 1000 % 1000:03}"


def _plain(name: str, value: Any) -> str:
    if name.endswith("_us"):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value / 1e6))
    if name.endswith("_bytes"):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)
