"""Which crate may depend on which. deny.toml says it; this reads `cargo metadata` and checks it."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from tools import toolbox
from tools.rules.finding import Finding
from tools.rules.tree import Tree
from tools.workspace import read_toml

Crate = dict[str, Any]


def banned_crates(tree: Tree) -> Iterator[Finding]:
    """A banned crate is used by its named wrappers at most."""
    graph = Graph(_metadata(tree.root))
    for rule in read_toml(tree.root / "deny.toml")["bans"]["deny"]:
        wrappers = rule.get("wrappers", [])
        for user in graph.users_of(rule["crate"]):
            # What a wrapper brings along is its own affair: pyo3 itself uses pyo3-ffi, say.
            if user["name"] not in wrappers and graph.is_member(user):
                message = f"{user['name']} uses {rule['crate']}: {_allowed(wrappers)}"
                yield Finding(graph.manifest(user, tree.root), 1, message)


def no_crate_edge_between_packages(tree: Tree) -> Iterator[Finding]:
    """No wheel links the Rust of another: there is no stable ABI, and each has its own statics."""
    graph = Graph(_metadata(tree.root))
    for user, used in graph.member_edges():
        home, away = _package(user), _package(used)
        if home != away:
            message = f"{user['name']} of {home} uses {used['name']} of {away}"
            yield Finding(graph.manifest(user, tree.root), 1, message)


def libraries_of_different_names(tree: Tree) -> Iterator[Finding]:
    """No two crates make a file of one name: cargo would put one in the other's place."""
    graph = Graph(_metadata(tree.root))
    makers: dict[str, Crate] = {}
    for crate in graph.members():
        for target in crate["targets"]:
            if not {"lib", "cdylib"} & set(target["kind"]):
                continue
            first = makers.setdefault(target["name"], crate)
            if first is not crate:
                message = f"the library {target['name']} is made by {first['name']} too"
                yield Finding(graph.manifest(crate, tree.root), 1, message)


def allowed_licences(tree: Tree) -> Iterator[Finding]:
    """Every crate that ships comes under a licence of the list."""
    allowed = frozenset(read_toml(tree.root / "deny.toml")["licenses"]["allow"])
    for crate in _metadata(tree.root)["packages"]:
        expression = crate["license"] or ""
        if not is_allowed(expression, allowed):
            message = f"{crate['name']} is under {expression or 'no licence'}: not in deny.toml"
            yield Finding("Cargo.lock", 1, message)


def is_allowed(expression: str, allowed: frozenset[str]) -> bool:
    """Whether an SPDX expression can be met with allowed licences alone."""
    inner = re.search(r"\(([^()]*)\)", expression)
    if inner:
        # A group is one licence that is allowed or not: name it after its answer.
        verdict = "met" if is_allowed(inner.group(1), allowed) else "unmet"
        outer = expression[: inner.start()] + verdict + expression[inner.end() :]
        return is_allowed(outer, allowed | {"met"})
    choices = re.split(r" OR |/", expression)
    return any(all(part.strip() in allowed for part in choice.split(" AND ")) for choice in choices)


class Graph:
    """The crates of the workspace and what they use."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        """Reads what `cargo metadata` printed."""
        self._crates: dict[str, Crate] = {crate["id"]: crate for crate in metadata["packages"]}
        self._members = frozenset(metadata["workspace_members"])
        nodes = metadata["resolve"]["nodes"]
        self._used = {node["id"]: [dep["pkg"] for dep in node["deps"]] for node in nodes}

    def is_member(self, crate: Crate) -> bool:
        """Whether a crate is one of ours."""
        return crate["id"] in self._members

    def members(self) -> list[Crate]:
        """Returns our crates, by name."""
        ours = [self._crates[member] for member in self._members]
        return sorted(ours, key=lambda crate: str(crate["name"]))

    def users_of(self, name: str) -> list[Crate]:
        """Returns the crates that use a crate of that name directly."""
        return [
            self._crates[user]
            for user, used in self._used.items()
            if any(self._crates[one]["name"] == name for one in used)
        ]

    def member_edges(self) -> Iterator[tuple[Crate, Crate]]:
        """Yields each pair of our crates where the first uses the second."""
        for user in sorted(self._members):
            for used in self._used[user]:
                if used in self._members:
                    yield self._crates[user], self._crates[used]

    def manifest(self, crate: Crate, root: Path) -> str:
        """Returns where one of our crates declares what it uses."""
        return Path(crate["manifest_path"]).relative_to(root).as_posix()


@lru_cache
def _metadata(root: Path) -> dict[str, Any]:
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--all-features"]
    env = {**os.environ, **toolbox.environment()}
    listed = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, env=env)
    metadata: dict[str, Any] = json.loads(listed.stdout)
    return metadata


def _package(crate: Crate) -> str:
    parts = Path(crate["manifest_path"]).parts
    return parts[parts.index("packages") + 1]


def _allowed(wrappers: list[str]) -> str:
    return f"only {', '.join(wrappers)} may" if wrappers else "nothing here may"
