"""Rules about the common structure of all packages."""

import ast
import re
from collections.abc import Iterator

from tools.prefix import distributions, prefix
from tools.rules.finding import Finding
from tools.rules.tree import Tree
from tools.workspace import Package, packages, requirement_name

_NO_NAMES = "__all__: list[str] = []"
PACKAGE_FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "tests/test_exports.py")


def public_modules(tree: Tree) -> Iterator[Finding]:
    """Check that the modules of `tools/workspace.py` are public and nothing else.

    Each has a docstring and exports names. A package may also contain commands, modules that are
    run by name and export nothing.
    """
    for package in packages(tree.root):
        source = package.source
        prefix = source.relative_to(tree.root).as_posix()
        for name in package.public_files:
            yield from _public_module(tree, f"{prefix}/{name}")
        for public in sorted(source.glob("[!_]*.py")):
            if public.name not in package.public_files and not _is_command(public.read_text()):
                path = f"{prefix}/{public.name}"
                yield Finding(path, 1, "a public module: start its name with an underscore")
        if not (source / "py.typed").is_file():
            yield Finding(
                f"{prefix}/py.typed", 1, "missing: type checkers would ignore the package"
            )


def package_files(tree: Tree) -> Iterator[Finding]:
    """Check that every package has the same files around its source."""
    for package in packages(tree.root):
        prefix = package.folder.relative_to(tree.root).as_posix()
        for name in PACKAGE_FILES:
            if not (package.folder / name).is_file():
                yield Finding(f"{prefix}/{name}", 1, "missing: every package has one")


def core_range_holds(tree: Tree) -> Iterator[Finding]:
    """Check that ranges of sibling packages have both bounds, so a new core cannot break them."""
    siblings = distributions(prefix(tree.root))
    for package in packages(tree.root):
        for line in package.requirements:
            is_sibling = requirement_name(line) in siblings
            if is_sibling and not re.fullmatch(r"[\w-]+>=[\d.]+,<[\d.]+", line):
                yield Finding(_manifest(package), 1, f"{line!r}: write >= and < for a sibling")


def _manifest(package: Package) -> str:
    return (package.folder / "pyproject.toml").relative_to(package.root).as_posix()


def _public_module(tree: Tree, path: str) -> Iterator[Finding]:
    module = ast.parse(tree.text(path), filename=path)
    if not ast.get_docstring(module):
        yield Finding(path, 1, "a public module without a docstring: describe its users")
    if all(isinstance(node, ast.Expr) or ast.unparse(node) == _NO_NAMES for node in module.body):
        yield Finding(path, 1, "a public module without names: delete it")
    elif not any(_lists_names(node) for node in module.body):
        yield from _implicit_names(module, path)


def _is_command(text: str) -> bool:
    """Return whether a module is a command for `python -m`: it runs, and exports nothing."""
    body = ast.parse(text).body
    ends = body and isinstance(body[-1], ast.If) and ast.unparse(body[-1].test)
    offers = [ast.unparse(node) for node in body if _lists_names(node)]
    return ends == "__name__ == '__main__'" and offers == [_NO_NAMES]


def _lists_names(node: ast.stmt) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def _implicit_names(module: ast.Module, path: str) -> Iterator[Finding]:
    """Find implicit exports: without `__all__` type checkers accept only `from a import b as b`."""
    for node in module.body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        for name in node.names:
            if name.asname not in (name.name, f"_{name.name}"):
                message = f"{name.name} is neither offered (as {name.name}) nor hidden"
                yield Finding(path, node.lineno, message)
