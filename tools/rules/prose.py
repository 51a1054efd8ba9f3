"""Rules about text that is only valid on one machine."""

import re
from collections.abc import Iterator

from tools.rules.finding import Finding
from tools.rules.tree import Tree

_MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:home|root|work|Users|opt/dev)/[\w.-]+")
_REGISTRY_HOST = re.compile(r"\b(?:pypi\.org|files\.pythonhosted\.org|static\.crates\.io)\b")


def no_machine_paths(tree: Tree) -> Iterator[Finding]:
    """Find absolute paths of the author's machine."""
    for path in tree.having(".md", ".py", ".rs", ".toml", ".yml", ".yaml", ".ipynb", ".txt"):
        if not path.startswith("tools/tests/"):
            yield from _matches(
                tree, path, _MACHINE_PATH, "a path of one machine: say it relatively"
            )


def no_registry_hosts(tree: Tree) -> Iterator[Finding]:
    """Find host names of package registries, which are part of the reader's configuration."""
    for path in tree.having(".md", ".py", ".rs", ".toml", ".yml", ".yaml", ".txt"):
        if not path.startswith("tools/tests/"):
            yield from _matches(
                tree, path, _REGISTRY_HOST, "the host of a registry: name the package"
            )


def _matches(tree: Tree, path: str, pattern: re.Pattern[str], message: str) -> Iterator[Finding]:
    for number, line in enumerate(tree.lines(path), 1):
        if found := pattern.search(line):
            yield Finding(path, number, f"{found.group()} is {message}")
