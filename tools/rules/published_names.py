"""Rules about the names under which the packages are published."""

import re
from collections.abc import Iterator

from tools.prefix import HISTORY, distributions, prefix
from tools.rules.finding import Finding
from tools.rules.tree import Tree
from tools.workspace import packages

_FOLDER = r"(?<![\w./-])mesh-(?:core|rdma|telemetry|jobs|fs|tensor)"
#: A folder of the repository used as the name of a distribution: with an extra, or installed.
_MISUSED = re.compile(rf"{_FOLDER}(?=\\?\[[a-z])|pip install [^`\n]*?(?P<name>{_FOLDER}(?![\w/-]))")


def published_names(tree: Tree) -> Iterator[Finding]:
    """Check that each package has the name that follows from the prefix."""
    expected = distributions(prefix(tree.root))
    for package, name in zip(packages(tree.root), expected, strict=True):
        if package.distribution != name:
            path = (package.folder / "pyproject.toml").relative_to(tree.root).as_posix()
            message = f"the name {package.distribution} must be {name}: run tools.prefix"
            yield Finding(path, 1, message)


def no_folder_is_installed(tree: Tree) -> Iterator[Finding]:
    """Find names of folders where users need the name of a distribution."""
    for path in tree.having(".md", ".py", ".rs", ".toml", ".txt", ".ipynb"):
        if path.startswith((*HISTORY, "tools/")) or path.endswith(HISTORY) or "/changes/" in path:
            continue
        for number, line in enumerate(tree.lines(path), 1):
            if found := _MISUSED.search(line):
                name = found["name"] or found.group()
                message = f"{name} is a folder: write the name of its distribution"
                yield Finding(path, number, message)
