"""Which modules have taken names from which, and in which order they are to be run again."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass, field
from importlib.util import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Imports", "dependents", "in_order", "module_imports"]


@dataclass(frozen=True)
class Imports:
    """What a module imports when it is run.

    Attributes:
        modules: Modules that it imports as a whole, and sees as they are at any time.
        origins: Modules from which it takes names, as these are when it is run.
    """

    modules: frozenset[str] = field(default_factory=frozenset)
    origins: frozenset[str] = field(default_factory=frozenset)


def module_imports(name: str, text: bytes, *, is_package: bool) -> Imports:
    """Reads the imports of a module, without those inside of functions.

    Raises:
        SyntaxError: It is no Python.
        ValueError: Neither is it, as it has zero bytes.
    """
    package = name if is_package else name.rpartition(".")[0]
    modules: set[str] = set()
    origins: set[str] = set()
    for node in _run_at_import(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(node, package)
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                if inner in sys.modules:
                    modules.add(inner)
                else:
                    origins.add(origin)
    return Imports(frozenset(modules), frozenset(origins))


def dependents(changed: set[str], graph: Mapping[str, Imports]) -> set[str]:
    """Gives the modules that have names of these, or of such modules in turn; and these."""
    found = set(changed)
    todo = list(changed)
    while todo:
        origin = todo.pop()
        for name, imports in graph.items():
            if origin in imports.origins and name not in found:
                found.add(name)
                todo.append(name)
    return found


def in_order(names: set[str], graph: Mapping[str, Imports]) -> list[str]:
    """Puts modules behind those that they import; of a circle any may come first."""
    order: list[str] = []
    seen: set[str] = set()

    for start in sorted(names):
        # By hand, as imports may be nested deeper than calls may.
        todo: list[tuple[str, bool]] = [(start, False)]
        while todo:
            name, is_done = todo.pop()
            if is_done:
                order.append(name)
            elif name not in seen:
                seen.add(name)
                todo.append((name, True))
                imports = graph.get(name, Imports())
                todo += [(other, False) for other in sorted(imports.modules | imports.origins)]
    return [name for name in order if name in names]


def _origin(node: ast.ImportFrom, package: str) -> str:
    relative = "." * node.level + (node.module or "")
    try:
        return resolve_name(relative, package) if node.level else relative
    except ImportError:
        return relative


def _run_at_import(tree: ast.AST) -> Iterator[ast.AST]:
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.If) and _is_for_types_only(node.test):
            todo += node.orelse
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            todo += ast.iter_child_nodes(node)


def _is_for_types_only(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"
