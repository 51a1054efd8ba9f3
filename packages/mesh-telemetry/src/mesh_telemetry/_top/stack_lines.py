"""The text of live stacks: frames of the program, and the number of frames of Python and Mesh."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from mesh_telemetry._rows.runtime_files import is_runtime_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_telemetry._top.snapshot import Row

__all__ = ["stack_text"]

# The command line with which Mesh starts a process.
_COMMAND_LINE = "<string>"
_PATH_PARTS = 3


def stack_text(rows: Sequence[Row]) -> Text:
    """Format stacks, those with code of the program first.

    Args:
        rows: Rows of `stacks`, in which the frames of a stack are adjacent, innermost first.
    """
    stacks = [list(frames) for _, frames in groupby(rows, _stack_key)]
    stacks.sort(key=lambda frames: not any(map(_is_user_frame, frames)))
    text = Text()
    for frames in stacks:
        _append_stack(text, frames)
    return text


def _append_stack(text: Text, frames: Sequence[Row]) -> None:
    first = frames[0]
    task = "" if first["task"] is None else f", task {first['task']} awaits"
    text.append(f"{first['proc']} {first['thread']}{task}", "bold")
    users = [frame for frame in frames if _is_user_frame(frame)]
    hidden = len(frames) - len(users)
    if not _is_user_frame(first):
        # The innermost frame shows what the thread waits for.
        text.append(f"  in {first['function']}  {_place(first)}", "dim")
    text.append("\n")
    for frame in users:
        text.append(f"  {frame['function']}", "bold cyan")
        text.append(f"  {_place(frame)}\n", "dim")
    if hidden:
        text.append(
            f"  {hidden} {'frame' if hidden == 1 else 'frames'} of Python and Mesh\n", "dim"
        )


def _place(frame: Row) -> str:
    """Return the end of the path of a frame, which fits on a line, and its line number."""
    return f"{'/'.join(frame['file'].split('/')[-_PATH_PARTS:])}:{frame['line']}"


def _is_user_frame(frame: Row) -> bool:
    file = frame["file"]
    return file != _COMMAND_LINE and not is_runtime_file(file)


def _stack_key(row: Row) -> tuple[str, int, int | None]:
    return row["proc"], row["thread_id"], row["task_id"]
