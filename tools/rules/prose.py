"""What documents must not name, because it is true on one machine only."""

import re
from collections.abc import Iterator

from tools.rules.finding import Finding
from tools.rules.tree import Tree

_MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:home|root|work|Users|opt/dev)/[\w.-]+")
_REGISTRY_HOST = re.compile(r"\b(?:pypi\.org|files\.pythonhosted\.org|static\.crates\.io)\b")


def no_machine_paths(tree: Tree) -> Iterator[Finding]:
    """A path of the author's machine helps nobody else."""
    for path in tree.having(".md", ".py", ".rs", ".toml", ".yml", ".yaml", ".ipynb", ".txt"):
        if not path.startswith("tools/tests/"):
            yield from _matches(
                tree, path, _MACHINE_PATH, "a path of one machine: say it relatively"
            )


def no_registry_hosts(tree: Tree) -> Iterator[Finding]:
    """Which host serves packages is the reader's configuration, not ours."""
    for path in tree.having(".md", ".py", ".rs", ".toml", ".yml", ".yaml", ".txt"):
        if not path.startswith("tools/tests/"):
            yield from _matches(
                tree, path, _REGISTRY_HOST, "the host of a registry: name the package"
            )


def _matches(tree: Tree, path: str, pattern: re.Pattern[str], message: str) -> Iterator[Finding]:
    for number, line in enumerate(tree.lines(path), 1):
        if found := pattern.search(line):
            yield Finding(path, number, f"{found.group()} is {message}")
