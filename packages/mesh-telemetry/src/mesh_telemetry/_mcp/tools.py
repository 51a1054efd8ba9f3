"""The tools of the server. They send the read token, which permits no change of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from mesh_telemetry._rows.runtime_files import is_runtime_file
from mesh_telemetry._rows.schemas import TABLE_DOCS
from mesh_telemetry._serve.program_client import ProgramClient
from mesh_telemetry._serve.program_files import served_program, served_programs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["TOOLS"]

_REPLY_S = 30.0
# Models read everything that a tool returns, so results are short.
_ROWS_MAX, _CELL_LEN_MAX, _LINES_MAX = 200, 2000, 200
_STACKS = """
    select p.mesh, p.rank, p.host, p.pid, s.thread, s.task, s.task_id, s.thread_id, s.function,
        s.file, s.line
    from stacks s join procs p on s.proc = p.proc
    where p.state <> 'dead' and ($mesh = '' or p.mesh = $mesh)
    order by p.mesh, p.rank, s.thread_id, s.task_id, s.depth
"""
_LOGS = """
    select to_timestamp_micros(timestamp_us) as time, mesh, rank, stream, line from logs
    where ($mesh = '' or mesh = $mesh) and ($contains = '' or strpos(line, $contains) > 0)
    order by timestamp_us desc limit $count
"""


def programs() -> list[dict[str, Any]]:
    """List the running Mesh programs of this user that serve telemetry, with pid and command line.

    Other tools need the pid only if there are several.
    """
    return [{"pid": one.pid, "command": one.program} for one in served_programs()]


def tables() -> str:
    """Describe all SQL tables and their columns. Call this before the first query."""
    parts = []
    for name, doc in sorted(TABLE_DOCS.items()):
        columns = [f"  {one.name} {one.type}: {one.text}" for one in doc.columns]
        parts.append("\n".join([f"{name}: {doc.text}", *columns]))
    return "\n\n".join(parts)


def query(sql: str, pid: int | None = None) -> dict[str, Any]:
    """Run a SELECT statement over a running program, on all of its hosts.

    The dialect is that of DataFusion. The tool `tables` describes the tables. Start with
    `failures`, `actors`, `procs`, `hosts`, `spans`, `logs` and `waits`. At most 200 rows are
    returned: aggregate, or use `limit`.
    """
    result = _query(pid, sql, {})
    rows = result["rows"]
    return {
        "columns": result["columns"],
        "rows": [_short_row(row) for row in rows[:_ROWS_MAX]],
        "rows_left_out": max(len(rows) - _ROWS_MAX, 0),
        "hosts_without_reply": result["coverage"]["failed"],
    }


def stacks(mesh: str = "", pid: int | None = None) -> str:
    """Return the Python stacks of threads and suspended tasks of a process mesh, or of all.

    Threads that run no code of the program are left out. Innermost frames come first. Use `why`
    first if the question is what a program waits for.
    """
    threads: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in _query(pid, _STACKS, {"mesh": mesh})["rows"]:
        of = tuple(row[name] for name in ("mesh", "rank", "host", "pid", "thread", "task"))
        threads.setdefault((*of, row["thread_id"], row["task_id"]), []).append(row)
    parts = []
    for (name, rank, host, process, thread, task, *_), frames in threads.items():
        if all(is_runtime_file(one["file"]) or one["file"] == "<string>" for one in frames):
            continue
        place = f"{name} rank {rank} (pid {process} on {host}), thread {thread}"
        parts.append(place if task is None else f"{place}, task {task}")
        parts += [f"  {one['file']}:{one['line']} in {one['function']}" for one in frames]
    if not threads:
        return "no process of this mesh replied: query `procs` for the meshes"
    return "\n".join(parts) or "no thread runs code of the program: all actors are idle"


def logs(
    mesh: str = "", contains: str = "", count: int = _LINES_MAX, pid: int | None = None
) -> list[dict[str, Any]]:
    """Return the latest lines that processes printed, the newest first.

    Pass the name of a process mesh, a text that the lines contain, or both.
    """
    parameters = {"mesh": mesh, "contains": contains, "count": min(max(count, 1), _LINES_MAX)}
    return [_short_row(row) for row in _query(pid, _LOGS, parameters)["rows"]]


def why(pid: int | None = None) -> dict[str, Any]:
    """Say which ranks keep a program waiting, where they are in the code, and why.

    Covers collectives of torch.distributed that some ranks have not joined, ranks that are slower
    than others, and chains of calls between actors.
    """
    return _get(pid, "/why")


def cases(pid: int | None = None) -> dict[str, Any]:
    """List the saved failures of recorded actors, the newest first."""
    found: dict[str, Any] = _get(pid, "/topics/cases")["value"]
    return found


def case(file: str, pid: int | None = None) -> dict[str, Any]:
    """Return a saved failure as text: the calls that the actor received, and how it failed.

    Args:
        file: Its name in the reply of `cases`.
        pid: The program, if several run.
    """
    found: dict[str, Any] = _get(pid, f"/topics/case?file={quote(file, safe='')}")["value"]
    return found


TOOLS: tuple[Callable[..., Any], ...] = (
    programs,
    tables,
    query,
    stacks,
    logs,
    why,
    cases,
    case,
)


def _query(pid: int | None, sql: str, parameters: Mapping[str, object]) -> dict[str, Any]:
    with ProgramClient(served_program(pid)) as client:
        return client.query(sql, parameters, timeout_s=_REPLY_S)


def _get(pid: int | None, path: str) -> dict[str, Any]:
    with ProgramClient(served_program(pid)) as client:
        return client.get(path, timeout_s=_REPLY_S)


def _short_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _short(value) for name, value in row.items()}


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _CELL_LEN_MAX:
        return f"{value[:_CELL_LEN_MAX]}... ({len(value)} characters)"
    return value
