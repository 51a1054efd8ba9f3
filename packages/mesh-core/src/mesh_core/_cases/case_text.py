"""Cases as text and as JSON: one line for a list, and the report of one case."""

from __future__ import annotations

import os
import time

from mesh_core._cases.case_file import CASE_SUFFIX, actor_fields, read_summary
from mesh_core._cases.entry_text import EntryLines, actor_name
from mesh_core._cases.errors import CaseError
from mesh_core._cases.escape import escape, format_len, shorten
from mesh_core._cases.render import Renderer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._cases.case import Case, Entry, RecordedActor

__all__ = ["Selection", "case_json", "case_lines", "list_cases", "list_lines", "select_actors"]

ENTRIES_SHOWN_MAX = 200
_REASON_LEN_MAX = 60
_TEXT_LEN_MAX = 2_000
_NAMES_LEN_MAX = 3
_HEADER = ("FILE", "TIME", "REASON", "ACTORS", "SIZE")


class Selection:
    """The parts of a case to show.

    Args:
        actors: The indexes of the actors whose entries are shown.
        entries_max: The maximum number of entries to show, counted from the last; None for all.
    """

    def __init__(self, actors: tuple[int, ...], entries_max: int | None) -> None:
        self.actors = actors
        self.entries_max = entries_max


def list_cases(folder: str) -> list[dict[str, Any]]:
    """Return a description of each case in a folder, the oldest first.

    A file that cannot be read is listed with an error, so that the other files are listed too.

    Raises:
        CaseError: The folder cannot be read.
    """
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(CASE_SUFFIX))
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"cannot list the folder {folder}: {reason}: pass a folder with cases"
        raise CaseError(message, folder) from None
    rows = [_describe(folder, name) for name in names]
    return sorted(rows, key=lambda row: row.get("created_ns", 0))


def list_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Return the table of `list_cases`."""
    table: list[tuple[str, ...]] = [_HEADER]
    for row in rows:
        file = escape(row["file"])
        if "error" in row:
            table.append((file, "", escape(shorten(row["error"], 4 * _REASON_LEN_MAX)), "", ""))
            continue
        names = [escape(shorten(name, _REASON_LEN_MAX)) for name in row["actors"][:_NAMES_LEN_MAX]]
        more = len(row["actors"]) - len(names)
        actors = ", ".join(names) + (f" and {more} more" if more else "")
        reason = escape(shorten(row["reason"], _REASON_LEN_MAX))
        table.append((file, _time(row["created_ns"]), reason, actors, format_len(row["size"])))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    # A long error must not move the columns of the other rows apart.
    widths[2] = min(widths[2], _REASON_LEN_MAX)
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]


def select_actors(case: Case, name: str | None) -> tuple[int, ...]:
    """Return the indexes of the actors with a name, by default of the failed actor.

    Args:
        case: The case.
        name: An actor as `mesh[rank]`, or None.

    Raises:
        CaseError: The case has no such actor.
    """
    if name is None:
        return () if not case.actors else (case.failed or 0,)
    found = tuple(
        index for index, actor in enumerate(case.actors) if f"{actor.mesh}[{actor.rank}]" == name
    )
    if not found:
        names = ", ".join(actor_name(actor) for actor in case.actors[:20]) or "none"
        raise CaseError(f"the case has no actor {name}: its actors are: {names}")
    return found


def case_lines(case: Case, selection: Selection) -> list[str]:
    """Return the report of a case."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(case.versions.items()))
    lines = [
        f"reason       {_field(case.reason)}",
        f"saved        {_time(case.created_ns)}",
        f"job          {case.job.hex()}",
        f"versions     {_field(versions)}",
        f"environment  {_field(', '.join(sorted(case.environ)))}",
        f"modules      {_field(', '.join(sorted(case.modules)))}",
        "",
        "actors",
    ]
    for index, actor in enumerate(case.actors):
        mark = "*" if index == case.failed else " "
        lines.append(f"{mark} {actor_name(actor)}  {_place(actor)}")
        if actor.ended:
            lines.append(f"    {_field(actor.ended)}")
    renderer = Renderer()
    for index in selection.actors:
        lines += ["", actor_name(case.actors[index])]
        lines += _entry_lines(case.actors[index], selection.entries_max, renderer)
    return lines


def case_json(case: Case, selection: Selection) -> dict[str, Any]:
    """Return the report of a case as a JSON value, with the text of each entry."""
    renderer = Renderer()
    actors = []
    for index, actor in enumerate(case.actors):
        value = {**actor_fields(actor), "entry_count": len(actor.entries)}
        if index in selection.actors:
            formatter = EntryLines(renderer)
            value["entries"] = [
                {
                    "number": entry.number,
                    "time_ns": entry.time_ns,
                    "kind": entry.kind,
                    "fields": _public_fields(entry),
                    "text": "\n".join(formatter.format(entry)),
                }
                for entry in actor.entries[_first(actor, selection.entries_max) :]
            ]
        actors.append(value)
    return {
        "reason": case.reason,
        "created_ns": case.created_ns,
        "job": case.job.hex(),
        "failed": case.failed,
        "versions": case.versions,
        "environ": sorted(case.environ),
        "modules": {
            name: {key: module[key] for key in ("file", "sha256") if key in module}
            for name, module in case.modules.items()
        },
        "actors": actors,
    }


def _public_fields(entry: Entry) -> dict[str, Any]:
    """Return the fields of an entry without the value of an environment variable."""
    if entry.kind == "read" and entry.fields["source"] == "environ":
        return {name: value for name, value in entry.fields.items() if name != "value"}
    return entry.fields


def _entry_lines(actor: RecordedActor, entries_max: int | None, renderer: Renderer) -> list[str]:
    formatter = EntryLines(renderer)
    first = _first(actor, entries_max)
    lines: list[str] = []
    if first:
        lines.append(f"  ... {first} earlier entries: pass --all to see them")
    for index, entry in enumerate(actor.entries[first:], first):
        if actor.evicted and index == (1 if actor.entries[0].kind == "begin" else 0):
            lines.append(f"  ... {actor.evicted} entries were not kept")
        lines += [f"  {line}" for line in formatter.format(entry)]
    if not lines:
        lines.append("  no entries")
    if actor.ended:
        lines.append(f"  ... {_field(actor.ended)}")
    return lines


def _first(actor: RecordedActor, entries_max: int | None) -> int:
    return 0 if entries_max is None else max(0, len(actor.entries) - entries_max)


def _describe(folder: str, name: str) -> dict[str, Any]:
    try:
        summary = read_summary(os.path.join(folder, name))
    except CaseError as error:
        return {"file": name, "error": str(error)}
    case = summary.case
    return {
        "file": name,
        "created_ns": case.created_ns,
        "reason": case.reason,
        "actors": [f"{actor.mesh}[{actor.rank}]" for actor in case.actors],
        "size": summary.file_len,
    }


def _place(actor: RecordedActor) -> str:
    count = len(actor.entries)
    evicted = f", {actor.evicted} not kept" if actor.evicted else ""
    place = f"process {actor.proc} on {actor.host}, pid {actor.pid}"
    return f"{_field(actor.class_name)}  {_field(place)}: {count} entries{evicted}"


def _field(text: str) -> str:
    return escape(shorten(text, _TEXT_LEN_MAX)) or "none"


def _time(time_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_ns // 1_000_000_000))
