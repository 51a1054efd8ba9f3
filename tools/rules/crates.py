"""Rules about dependencies between crates: checks `cargo metadata` against deny.toml."""

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

#: The folder of the crates that more than one wheel compiles; it is not a package.
SHARED = "crates"


def banned_crates(tree: Tree) -> Iterator[Finding]:
    """Find uses of a banned crate outside its permitted wrappers."""
    graph = Graph(_metadata(tree.root))
    for rule in read_toml(tree.root / "deny.toml")["bans"]["deny"]:
        wrappers = rule.get("wrappers", [])
        for user in graph.users_of(rule["crate"]):
            # The dependencies of a wrapper are not checked: pyo3 itself uses pyo3-ffi, for example.
            if user["name"] not in wrappers and graph.is_member(user):
                message = f"{user['name']} uses {rule['crate']}: {_allowed(wrappers)}"
                yield Finding(graph.manifest(user, tree.root), 1, message)


def no_crate_edge_between_packages(tree: Tree) -> Iterator[Finding]:
    """Find Rust links between wheels: no ABI is stable, and each wheel has separate statics.

    The crates in the top-level folder `crates/` are compiled into each wheel that uses them.
    """
    graph = Graph(_metadata(tree.root))
    for user, used in graph.edges_between_packages(tree.root):
        message = (
            f"{user['name']} uses {used['name']}: "
            "a crate may use its own package and the shared crates in crates/ only"
        )
        yield Finding(graph.manifest(user, tree.root), 1, message)


def libraries_of_different_names(tree: Tree) -> Iterator[Finding]:
    """Find crates with the same library file name: cargo would overwrite one with the other."""
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
    """Find shipped crates whose licence is not on the list."""
    allowed = frozenset(read_toml(tree.root / "deny.toml")["licenses"]["allow"])
    for crate in _metadata(tree.root)["packages"]:
        expression = crate["license"] or ""
        if not is_allowed(expression, allowed):
            message = f"{crate['name']} is under {expression or 'no licence'}: not in deny.toml"
            yield Finding("Cargo.lock", 1, message)


def is_allowed(expression: str, allowed: frozenset[str]) -> bool:
    """Return whether allowed licences satisfy an SPDX expression."""
    inner = re.search(r"\(([^()]*)\)", expression)
    if inner:
        # A group is replaced by its result as if it were the name of a licence.
        verdict = "met" if is_allowed(inner.group(1), allowed) else "unmet"
        outer = expression[: inner.start()] + verdict + expression[inner.end() :]
        return is_allowed(outer, allowed | {"met"})
    choices = re.split(r" OR |/", expression)
    return any(all(part.strip() in allowed for part in choice.split(" AND ")) for choice in choices)


class Graph:
    """The crates of the workspace and their dependencies."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        """Parse the output of `cargo metadata`."""
        self._crates: dict[str, Crate] = {crate["id"]: crate for crate in metadata["packages"]}
        self._members = frozenset(metadata["workspace_members"])
        nodes = metadata["resolve"]["nodes"]
        self._used = {node["id"]: [dep["pkg"] for dep in node["deps"]] for node in nodes}

    def is_member(self, crate: Crate) -> bool:
        """Return whether a crate is part of the workspace."""
        return crate["id"] in self._members

    def members(self) -> list[Crate]:
        """Return the crates of the workspace, sorted by name."""
        ours = [self._crates[member] for member in self._members]
        return sorted(ours, key=lambda crate: str(crate["name"]))

    def users_of(self, name: str) -> list[Crate]:
        """Return the crates with a direct dependency on a crate of that name."""
        return [
            self._crates[user]
            for user, used in self._used.items()
            if any(self._crates[one]["name"] == name for one in used)
        ]

    def member_edges(self) -> Iterator[tuple[Crate, Crate]]:
        """Yield each pair of workspace crates in which the first depends on the second."""
        for user in sorted(self._members):
            for used in self._used[user]:
                if used in self._members:
                    yield self._crates[user], self._crates[used]

    def edges_between_packages(self, root: Path) -> Iterator[tuple[Crate, Crate]]:
        """Yield the dependencies on a crate that is neither of the same package nor shared."""
        for user, used in self.member_edges():
            if _home(used, root) not in (_home(user, root), SHARED):
                yield user, used

    def manifest(self, crate: Crate, root: Path) -> str:
        """Return the path of the manifest of a workspace crate."""
        return Path(crate["manifest_path"]).relative_to(root).as_posix()


@lru_cache
def _metadata(root: Path) -> dict[str, Any]:
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--all-features"]
    env = {**os.environ, **toolbox.environment()}
    listed = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, env=env)
    metadata: dict[str, Any] = json.loads(listed.stdout)
    return metadata


def _home(crate: Crate, root: Path) -> str:
    """Return the name of the package of a workspace crate, or `SHARED`."""
    folder, name, *_ = Path(crate["manifest_path"]).relative_to(root).parts
    return name if folder == "packages" else SHARED


def _allowed(wrappers: list[str]) -> str:
    return f"only {', '.join(wrappers)} may" if wrappers else "nothing here may"
