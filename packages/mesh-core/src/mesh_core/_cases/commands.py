"""The commands `list`, `show` and `diff`, which read cases, and `save`, which saves one."""

from __future__ import annotations

import argparse
import json
import os
import sys

from mesh_core._cases.case_file import read_case
from mesh_core._cases.case_text import (
    ENTRIES_SHOWN_MAX,
    Selection,
    case_json,
    case_lines,
    list_cases,
    list_lines,
    select_actors,
)
from mesh_core._cases.difference import difference_lines
from mesh_core._cases.errors import CaseError
from mesh_core._cases.escape import escape
from mesh_core._cases.save_command import add_save_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["run_command"]


def run_command(arguments: list[str] | None, description: str | None) -> int:
    """Run a command line and return the exit status: 0, or 2 after an error.

    Args:
        arguments: The arguments, by default those of the process.
        description: The first text in the help of the command.
    """
    options = _parser(description).parse_args(arguments)
    try:
        lines = options.run(options)
    except CaseError as error:
        print(f"mesh case: {_encodable(escape(str(error)), sys.stderr)}", file=sys.stderr)
        return 2
    except MemoryError:
        print("mesh case: the case needs more memory than there is", file=sys.stderr)
        return 2
    try:
        for line in lines:
            print(_encodable(line, sys.stdout))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe. Python would report the error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m mesh_core.case", description=description)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("list", help="list the cases in a folder")
    one.add_argument(
        "folder", nargs="?", default=".", metavar="FOLDER", help="default: %(default)s"
    )
    one.add_argument("--json", action="store_true", help="print JSON")
    one.set_defaults(run=_list)
    one = commands.add_parser("show", help="show what a case contains")
    one.add_argument("case", metavar="CASE", help="the file of the case")
    one.add_argument(
        "--actor",
        metavar="MESH[RANK]",
        help="the actor whose entries to show; default: the actor that failed",
    )
    one.add_argument(
        "--all",
        action="store_true",
        help="show all entries, and all actors unless --actor is given; "
        f"default: the last {ENTRIES_SHOWN_MAX} entries",
    )
    one.add_argument("--json", action="store_true", help="print JSON")
    one.set_defaults(run=_show)
    one = commands.add_parser("diff", help="find the first difference of two cases")
    one.add_argument("case", metavar="CASE", help="the file of a case")
    one.add_argument("other", metavar="OTHER", help="a case of the same class")
    one.set_defaults(run=_diff)
    add_save_command(commands)
    return parser


def _list(options: argparse.Namespace) -> list[str]:
    rows = list_cases(options.folder)
    if options.json:
        return [_json(rows)]
    return list_lines(rows) if rows else [f"no cases in {escape(options.folder)}"]


def _show(options: argparse.Namespace) -> list[str]:
    case = read_case(options.case)
    if options.all and options.actor is None:
        actors = tuple(range(len(case.actors)))
    else:
        actors = select_actors(case, options.actor)
    selection = Selection(actors, None if options.all else ENTRIES_SHOWN_MAX)
    return [_json(case_json(case, selection))] if options.json else case_lines(case, selection)


def _diff(options: argparse.Namespace) -> list[str]:
    labels = (options.case, options.other)
    return difference_lines(read_case(options.case), read_case(options.other), labels)


def _json(value: Any) -> str:
    # Control characters are escaped by JSON.
    return json.dumps(value, indent=2)


def _encodable(text: str, stream: Any) -> str:
    """Replace characters that the encoding of a stream does not have."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
