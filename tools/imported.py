"""Finds the packages of this repository that a script imports, directly or through neighbours."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.workspace import PACKAGES, package


def packages_of(arguments: Sequence[str]) -> list[str]:
    """Return the packages that a Python command line needs, each after its dependencies.

    Args:
        arguments: The arguments of `python`: a script and its arguments, or options such as `-m`.

    Returns:
        The packages that the script imports and their dependencies. All packages, if the arguments
        do not begin with a Python file that can be parsed.
    """
    script = Path(arguments[0]) if arguments else None
    if script is None or script.suffix != ".py" or not script.is_file():
        return list(PACKAGES)
    imported = set(_imported(script, set()))
    named = [name for name in PACKAGES if package(name).import_name in imported]
    return [
        name
        for name in PACKAGES
        if name in named or any(name in package(one).siblings for one in named)
    ]


def _imported(script: Path, seen: set[Path]) -> Iterator[str]:
    """Yield the top-level modules that a file imports, including through modules in its folder."""
    seen.add(script)
    try:
        tree = ast.parse(script.read_bytes())
    except SyntaxError:
        # Python itself reports the error, so all packages are provided.
        yield from (package(name).import_name for name in PACKAGES)
        return
    for name in _names(tree):
        yield name
        for sibling in (script.parent / f"{name}.py", script.parent / name / "__init__.py"):
            if sibling.is_file() and sibling not in seen:
                yield from _imported(sibling, seen)


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name.partition(".")[0] for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]
