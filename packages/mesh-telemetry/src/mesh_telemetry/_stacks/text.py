"""Text for the stacks of many processes: equal stacks once, with the processes that have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from mesh_telemetry._rows.runtime_files import is_runtime_file

__all__ = ["Stack", "formatted", "grouped", "stacks_of"]

_NAMES_MAX, _VALUES_MAX = 8, 4
_COMMAND_LINE, _MESH = "<string>", "/mesh_core/"


class Stack(NamedTuple):
    """The stack of one thread."""

    proc: str
    thread: str
    has_gil: bool
    frames: tuple[tuple[str, str, int], ...]
    """Function, file and line; innermost first."""
    variables: Mapping[tuple[int, str], str]
    """The value of each variable, by the depth of its frame and its name."""

    @property
    def is_user_code(self) -> bool:
        """Whether it contains code of the program, and not only of Python and Mesh."""
        files = [file for _, file, _ in self.frames]
        if files[-1:] == [_COMMAND_LINE] and _MESH in "".join(files[-2:-1]):
            # The command line with which Mesh starts a process.
            files.pop()
        return any(not is_runtime_file(file) for file in files)


def stacks_of(
    threads: Iterable[Mapping[str, Any]],
    frames: Iterable[Mapping[str, Any]],
    variables: Iterable[Mapping[str, Any]],
) -> list[Stack]:
    """Build stacks from the rows of a dump, ordered by processes and threads."""
    calls: dict[tuple[Any, ...], dict[int, tuple[str, str, int]]] = {}
    for row in frames:
        call = (row["name"], row["filename"], row["line"])
        calls.setdefault(_key(row), {})[row["frame_depth"]] = call
    values: dict[tuple[Any, ...], dict[tuple[int, str], str]] = {}
    for row in variables:
        variable_key = (row["frame_depth"], row["name"])
        values.setdefault(_key(row), {})[variable_key] = row["repr"] or "?"
    return [
        Stack(
            row["proc"],
            row["thread_name"] or "",
            row["owns_gil"],
            tuple(call for _, call in sorted(calls.get(_key(row), {}).items())),
            values.get(_key(row), {}),
        )
        for row in sorted(threads, key=lambda row: (_sort_key(row["proc"]), row["thread_id"]))
    ]


def grouped(stacks: Iterable[Stack]) -> list[list[Stack]]:
    """Group equal stacks; groups with the most processes come first."""
    groups: dict[tuple[tuple[str, str, int], ...], list[Stack]] = {}
    for stack in stacks:
        groups.setdefault(stack.frames, []).append(stack)
    return sorted(groups.values(), key=lambda group: -len({stack.proc for stack in group}))


def formatted(group: list[Stack]) -> list[str]:
    """Format a group of equal stacks."""
    procs = list(dict.fromkeys(stack.proc for stack in group))
    threads = list(dict.fromkeys(stack.thread or "thread" for stack in group))
    holders = [stack.proc for stack in group if stack.has_gil]
    count = f"{len(procs)} processes" if len(procs) > 1 else "process"
    head = f"{count} {_abbreviated(procs, _NAMES_MAX)}, {_abbreviated(threads, _NAMES_MAX)}"
    if holders:
        head += f", with the GIL: {_abbreviated(holders, _NAMES_MAX)}"
    lines = [head]
    for depth, (name, file, line) in enumerate(group[0].frames):
        lines.append(f"    {name} ({file}:{line})" if line else f"    {name} ({file})")
        names = {at[1]: None for stack in group for at in stack.variables if at[0] == depth}
        for variable in names:
            lines.append(f"        {variable} = {_values(group, (depth, variable))}")
    return lines


def _values(group: list[Stack], variable_key: tuple[int, str]) -> str:
    """Format the values of a variable; if they differ, with the processes that have them."""
    found: dict[str, list[str]] = {}
    for stack in group:
        if variable_key in stack.variables:
            found.setdefault(stack.variables[variable_key], []).append(stack.proc)
    if len(found) == 1:
        return next(iter(found))
    some = [f"{value} in {_abbreviated(procs, _VALUES_MAX)}" for value, procs in found.items()]
    return _abbreviated(some, _VALUES_MAX, "; ")


def _abbreviated(words: list[str], most: int, between: str = ", ") -> str:
    left = len(words) - most
    more = f" and {left} more" if left > 0 else ""
    return between.join(words[:most]) + more


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["proc"], row["pid"], row["thread_id"]


def _sort_key(proc: str) -> tuple[list[int], str]:
    return [int(part) for part in proc.split(".") if part.isdecimal()], proc
