"""The imports between modules, and the order in which modules must be executed again."""

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
    """The imports of a module at the time of its execution.

    Attributes:
        modules: Modules that it imports as a whole, so that it always sees their current state.
        origins: Modules from which it imports names, so that it sees their state at the time of its
            execution.
    """

    modules: frozenset[str] = field(default_factory=frozenset)
    origins: frozenset[str] = field(default_factory=frozenset)


def module_imports(name: str, text: bytes, *, is_package: bool) -> Imports:
    """Return the imports of a module, except those inside functions.

    Raises:
        SyntaxError: The text is not valid Python.
        ValueError: The text contains null bytes.
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
    """Return the given modules, and all modules that import names from them, transitively."""
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
    """Sort modules so that they follow the modules that they import; cycles have any order."""
    order: list[str] = []
    seen: set[str] = set()

    for start in sorted(names):
        # This is iterative, because imports may be nested deeper than the recursion limit.
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
