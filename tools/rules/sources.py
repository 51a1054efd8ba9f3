"""What must not stand in code."""

import re
from collections.abc import Iterator

from tools.rules.finding import Finding
from tools.rules.tree import Tree, is_test

#: A line may sleep when the sleep is what is under test, and says so: `# tidy: sleeps because ...`.
EXCUSE = re.compile(r"tidy: sleeps because \w+")

_SLEEP = re.compile(r"\bsleep\((?!0\))")
_TODO = re.compile(r"(?:#|//|/\*).*\b(TODO|FIXME|XXX)\b(?!\(#\d+\))")


def no_sleep_in_tests(tree: Tree) -> Iterator[Finding]:
    """A test waits for a condition or turns a fake clock; a sleep is slow or wrong, often both."""
    for path in tree.having(".py", ".rs"):
        if not is_test(path) or path.startswith("tools/tests/"):
            continue
        for number, line in enumerate(tree.lines(path), 1):
            if _SLEEP.search(line) and not EXCUSE.search(line):
                yield Finding(path, number, "sleep in a test: wait for a condition")


def todo_has_an_issue(tree: Tree) -> Iterator[Finding]:
    """What is left to do is an issue that someone can find."""
    for path in tree.having(".py", ".pyi", ".rs"):
        if path.startswith("tools/"):
            continue
        for number, line in enumerate(tree.lines(path), 1):
            if found := _TODO.search(line):
                word = found.group(1)
                yield Finding(path, number, f"{word} without an issue: write {word}(#12)")
