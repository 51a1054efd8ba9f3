"""Rules about the names of files and the lengths of files and lines."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from tools.rules.finding import Finding
from tools.rules.tree import Tree

FILE_LINES_WARN = 500
FILE_LINES_MAX = 800
LINE_COLUMNS_MAX = 100

#: Words without information about the content of a file. A leading underscore does not help.
EMPTY_WORDS = frozenset({"helper", "helpers", "util", "utils", "common", "manager", "misc"})

CODE = (".py", ".pyi", ".rs")


def file_names(tree: Tree) -> Iterator[Finding]:
    """Find file names without a meaningful word."""
    for path in tree.having(*CODE):
        words = PurePosixPath(path).stem.strip("_").split("_")
        for word in sorted(EMPTY_WORDS.intersection(words)):
            yield Finding(path, 1, f"{word!r} in a file name: name the idea in it")


def file_lengths(tree: Tree) -> Iterator[Finding]:
    """Find modules that are longer than 500 lines."""
    for path in tree.having(*CODE):
        length = len(tree.lines(path))
        if length > FILE_LINES_WARN:
            message = f"{length} lines, more than {FILE_LINES_WARN}: split it by idea"
            yield Finding(path, length, message, is_warning=length <= FILE_LINES_MAX)


def line_lengths(tree: Tree) -> Iterator[Finding]:
    """Find lines longer than 100 columns that rustfmt does not wrap; ruff checks Python."""
    for path in tree.having(".rs"):
        for number, line in enumerate(tree.lines(path), 1):
            if len(line) > LINE_COLUMNS_MAX and "https://" not in line:
                yield Finding(path, number, f"{len(line)} columns, more than {LINE_COLUMNS_MAX}")
