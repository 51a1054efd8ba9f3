"""Rule about import cycles inside a package, including imports inside functions."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from tools.rules.finding import Finding
from tools.rules.tree import Tree

_SOURCES = "/src/"


def no_import_cycle(tree: Tree) -> Iterator[Finding]:
    """Find modules of packages that import each other; imports for type checkers do not count."""
    paths = {_module_of(path): path for path in tree.having(".py") if _is_source(path)}
    graph = {
        name: [
            target
            for target in _imported(ast.parse(tree.text(path)))
            if target in paths and target != name
        ]
        for name, path in paths.items()
        if not path.endswith("/__init__.py")
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        message = f"import cycle: {' <- '.join(cycle)}: split a module or pass the object down"
        yield Finding(paths[cycle[0]], 1, message)


def _is_source(path: str) -> bool:
    return path.startswith("packages/") and _SOURCES in path


def _module_of(path: str) -> str:
    return path.partition(_SOURCES)[2].removesuffix(".py").replace("/", ".")


def _imported(node: ast.AST) -> Iterator[str]:
    """Yield the modules that code imports at run time, and the names that it imports from them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            for other in child.orelse:
                yield from _imported(ast.Module([other], []))
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield child.module
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        else:
            yield from _imported(child)
