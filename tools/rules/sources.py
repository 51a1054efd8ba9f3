"""Rules about text that source code must not contain."""

import re
from collections.abc import Iterator

from tools.rules.finding import Finding
from tools.rules.tree import Tree, is_test

_SLEEP = re.compile(r"\b(?:time\.|asyncio\.|thread::)sleep\((?!0\))")
#: The duration is a parameter or exceeds any test: nothing waits for the end of such a sleep.
_WORK_OR_FOREVER = re.compile(r"sleep\((?:seconds|\d*[6-9]\d|\d{3,})\)")
#: Tests with these run in virtual time, in which nothing waits.
_IN_SIMULATION = re.compile(r"\b(?:simulated|mesh_simulation)\(")
#: The sleep of a polling loop is at most this number of lines below its head.
_POLL_LEN_MAX = 6
_TODO = re.compile(r"(?:#|//|/\*).*\b(TODO|FIXME|XXX)\b(?!\(#\d+\))")


def no_sleep_in_tests(tree: Tree) -> Iterator[Finding]:
    """Find sleeps in tests, which must wait for a condition or use a fake clock."""
    for path in tree.having(".py", ".rs"):
        if not is_test(path) or path.startswith("tools/tests/"):
            continue
        lines = list(tree.lines(path))
        if any(map(_IN_SIMULATION.search, lines)):
            continue
        for number, line in enumerate(lines, 1):
            if not _SLEEP.search(line) or _WORK_OR_FOREVER.search(line):
                continue
            if not _is_poll(lines[max(0, number - _POLL_LEN_MAX) : number]):
                yield Finding(path, number, "sleep in a test: wait for a condition")


def _is_poll(lines: list[str]) -> bool:
    """Return whether the last line is in the body of a `while` in these lines."""
    depth = _depth(lines[-1])
    for line in reversed(lines):
        if line.strip() and _depth(line) < depth:
            depth = _depth(line)
            if line.lstrip().startswith("while "):
                return True
    return bool(re.search(r"\bwhile .*: ", lines[-1]))


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def todo_has_an_issue(tree: Tree) -> Iterator[Finding]:
    """Find TODO comments without an issue."""
    for path in tree.having(".py", ".pyi", ".rs"):
        if path.startswith("tools/"):
            continue
        for number, line in enumerate(tree.lines(path), 1):
            if found := _TODO.search(line):
                word = found.group(1)
                yield Finding(path, number, f"{word} without an issue: write {word}(#12)")
