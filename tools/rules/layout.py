"""How files are named and how long they and their lines may be."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from tools.rules.finding import Finding
from tools.rules.tree import Tree

FILE_LINES_WARN = 500
FILE_LINES_MAX = 800
LINE_COLUMNS_MAX = 100

#: Words that say nothing about what is in a file. A leading underscore does not help.
EMPTY_WORDS = frozenset({"helper", "helpers", "util", "utils", "common", "manager", "misc"})

CODE = (".py", ".pyi", ".rs")


def file_names(tree: Tree) -> Iterator[Finding]:
    """A file is named after the one idea in it."""
    for path in tree.having(*CODE):
        words = PurePosixPath(path).stem.strip("_").split("_")
        for word in sorted(EMPTY_WORDS.intersection(words)):
            yield Finding(path, 1, f"{word!r} in a file name: name the idea in it")


def file_lengths(tree: Tree) -> Iterator[Finding]:
    """A module over 500 lines wants to be two."""
    for path in tree.having(*CODE):
        length = len(tree.lines(path))
        if length > FILE_LINES_WARN:
            message = f"{length} lines, more than {FILE_LINES_WARN}: split it by idea"
            yield Finding(path, length, message, is_warning=length <= FILE_LINES_MAX)


def line_lengths(tree: Tree) -> Iterator[Finding]:
    """Code is read in 100 columns. ruff sees to Python; rustfmt leaves comments and strings."""
    for path in tree.having(".rs"):
        for number, line in enumerate(tree.lines(path), 1):
            if len(line) > LINE_COLUMNS_MAX and "https://" not in line:
                yield Finding(path, number, f"{len(line)} columns, more than {LINE_COLUMNS_MAX}")
