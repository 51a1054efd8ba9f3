"""Rules about imports of public modules. import-linter checks the layers inside packages."""

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath

from tools.rules.finding import Finding
from tools.rules.tree import Tree
from tools.workspace import PACKAGES, Package


def no_private_import_across_packages(tree: Tree) -> Iterator[Finding]:
    """Find private imports from other packages, tests across packages, examples or documents.

    The fuzz targets are exempt, because they test private code.
    """
    modules = {Package(name).import_name for name in PACKAGES}
    for path in tree.having(".py"):
        if path.startswith("fuzz/"):
            continue
        own = _owner(path)
        for line, target in _imports(ast.parse(tree.text(path), filename=path)):
            top, *rest = target.split(".")
            private = next((part for part in rest if part.startswith("_")), None)
            if top in modules and top != own and private:
                message = f"{target} is private to {top}: use {top}, {top}.spi or {top}.testing"
                yield Finding(path, line, message)


def _owner(path: str) -> str | None:
    """Return the import name of the package to which a file belongs."""
    parts = PurePosixPath(path).parts
    if parts[0] == "packages" and len(parts) > 1:
        return parts[1].replace("-", "_")
    return None


def _imports(module: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                yield node.lineno, f"{node.module}.{name.name}"
