"""What the text of a Rust crate may not name."""

import re
from collections.abc import Iterator

from tools.rules.finding import Finding
from tools.rules.tree import Tree

WIRE_SOURCES = "packages/mesh-core/crates/mesh-wire/src/"

#: The wire is bytes in, values out: no socket, file, clock, thread or environment.
_WORLD = re.compile(r"\bstd::(?:net|fs|time|thread|process|env|os|io)\b")


def wire_is_pure(tree: Tree) -> Iterator[Finding]:
    """mesh-wire does no IO and knows no time; whoever calls it decides both."""
    for path in tree.having(".rs"):
        if path.startswith(WIRE_SOURCES):
            for number, line in enumerate(tree.lines(path), 1):
                if found := _WORLD.search(line):
                    yield Finding(path, number, f"{found.group()} in mesh-wire: it does no IO")
