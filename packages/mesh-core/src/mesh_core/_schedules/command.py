"""The command `python -m mesh_core.schedules`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mesh_core._errors import MeshError
from mesh_core._replay.traceback import print_users_traceback
from mesh_core._schedules.as_test import write_schedule_test
from mesh_core._schedules.search import ScheduleSearch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._schedules.search import FailingSchedule

__all__ = ["main"]

_SHOWN_MAX = 8


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit status: 0 if no order fails, 1 if one does, 2 if the actors cannot run together.
    """
    parser = argparse.ArgumentParser(
        prog="python -m mesh_core.schedules",
        description="Run the actors of a case together, in the recorded order and in others, and "
        "print the shortest order in which they fail.",
    )
    parser.add_argument("case", help="the case, which a failure or save_case() has left")
    parser.add_argument(
        "--trust", action="store_true", help="execute what the case contains; required"
    )
    parser.add_argument(
        "--count", type=_count, default=500, metavar="N", help="the number of other orders (500)"
    )
    parser.add_argument(
        "--seed", type=_count, default=0, metavar="S", help="the seed of the first one (0)"
    )
    parser.add_argument(
        "--may-reorder",
        action="store_true",
        help="send messages from outside in any order, even if their senders may have waited",
    )
    parser.add_argument(
        "--as-test", metavar="FOLDER", help="write a pytest file that fails until no order fails"
    )
    parser.add_argument("--mermaid", metavar="FILE", help="write the order as a Mermaid diagram")
    options = parser.parse_args(arguments)
    try:
        return _search(options)
    except (MeshError, OSError) as error:
        print(f"mesh schedules: {error}", file=sys.stderr)
        return 2


def _search(options: argparse.Namespace) -> int:
    search = ScheduleSearch(options.case, trust=options.trust, may_reorder=options.may_reorder)
    _say(f"{_listed(search.actors)} get {search.input_count} messages from outside")
    for name, why in search.left_out.items():
        _say(f"{name} does not run: {why}")
    found = search.run_recorded()
    if found is not None:
        _say("the recorded order fails")
    else:
        _say("the recorded order does not fail")
        found = search.find(options.count, options.seed)
        if found is None:
            _say(f"{options.count} other orders do not fail either")
            return 0
        _say(f"the order of seed {found.seed} fails: --seed {found.seed} begins with it")
    _print(found)
    if options.mermaid is not None:
        Path(options.mermaid).write_text(found.mermaid(), encoding="utf-8")
    if options.as_test is not None:
        count = max(options.count, 0 if found.seed is None else found.seed + 1)
        print(write_schedule_test(search, found, count, options.as_test))
    return 1


def _print(found: FailingSchedule) -> None:
    if found.actor:
        print_users_traceback(found.error)
    if found.is_race:
        _say("the order is the cause: one message after another, the actors do not fail")
    else:
        _say("the order is not the cause: one message after another, the actors fail, too")
    count = len(found.steps)
    _say(f"the shortest order found has {count} of {found.found_length} messages and replies:")
    print(found.diagram(), flush=True)


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN_MAX
    return ", ".join(names[:_SHOWN_MAX]) + (f" and {more} more actors" if more > 0 else "")


def _say(text: str) -> None:
    print(f"mesh schedules: {text}", file=sys.stderr, flush=True)


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return number
