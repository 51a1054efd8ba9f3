"""Rules about names in the text of Rust crates."""

import re
from collections.abc import Iterator

from tools.rules.finding import Finding
from tools.rules.tree import Tree

WIRE_SOURCES = "packages/mesh-core/crates/mesh-wire/src/"

#: mesh-wire converts bytes to values: it uses no sockets, files, clocks, threads or environment.
_WORLD = re.compile(r"\bstd::(?:net|fs|time|thread|process|env|os|io)\b")


def wire_is_pure(tree: Tree) -> Iterator[Finding]:
    """Find uses of IO or time in mesh-wire; its callers provide both."""
    for path in tree.having(".rs"):
        if path.startswith(WIRE_SOURCES):
            for number, line in enumerate(tree.lines(path), 1):
                if found := _WORLD.search(line):
                    yield Finding(path, number, f"{found.group()} in mesh-wire: it does no IO")
