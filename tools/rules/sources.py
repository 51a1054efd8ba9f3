"""What must not stand in code."""

import re
from collections.abc import Iterator

from tools.rules.finding import Finding
from tools.rules.tree import Tree, is_test

_SLEEP = re.compile(r"\b(?:time\.|asyncio\.|thread::)sleep\((?!0\))")
#: As long as the caller says, or longer than a test may take: nobody waits for the end of it.
_WORK_OR_FOREVER = re.compile(r"sleep\((?:seconds|\d*[6-9]\d|\d{3,})\)")
#: A loop that looks for a condition has its sleep so many lines below its head at most.
_POLL_LEN_MAX = 6
_TODO = re.compile(r"(?:#|//|/\*).*\b(TODO|FIXME|XXX)\b(?!\(#\d+\))")


def no_sleep_in_tests(tree: Tree) -> Iterator[Finding]:
    """A test waits for a condition or turns a fake clock; a sleep is slow or wrong, often both."""
    for path in tree.having(".py", ".rs"):
        if not is_test(path) or path.startswith("tools/tests/"):
            continue
        lines = list(tree.lines(path))
        for number, line in enumerate(lines, 1):
            if not _SLEEP.search(line) or _WORK_OR_FOREVER.search(line):
                continue
            if not _is_poll(lines[max(0, number - _POLL_LEN_MAX) : number]):
                yield Finding(path, number, "sleep in a test: wait for a condition")


def _is_poll(lines: list[str]) -> bool:
    """Says whether the last of the lines is in the body of a `while` among them."""
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
    """What is left to do is an issue that someone can find."""
    for path in tree.having(".py", ".pyi", ".rs"):
        if path.startswith("tools/"):
            continue
        for number, line in enumerate(tree.lines(path), 1):
            if found := _TODO.search(line):
                word = found.group(1)
                yield Finding(path, number, f"{word} without an issue: write {word}(#12)")
