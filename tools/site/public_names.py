"""The public modules of all packages, and the names that they export, read from the source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import griffe

from tools.workspace import packages


@dataclass(frozen=True)
class PublicName:
    """A name that programs may import.

    Attributes:
        name: The name.
        summary: The first line of its docstring; empty without a docstring.
    """

    name: str
    summary: str


@dataclass(frozen=True)
class PublicModule:
    """A public module and its names, sorted.

    Attributes:
        name: The import name, such as `mesh_core.services`.
        docstring: Its docstring.
        names: The names that it exports.
    """

    name: str
    docstring: str
    names: tuple[PublicName, ...]


def public_modules() -> Iterator[PublicModule]:
    """Yield the public modules that export names; the modules of mesh-core are first."""
    loader = griffe.GriffeLoader(search_paths=[str(one.source.parent) for one in packages()])
    for package in packages():
        loader.load(package.import_name)
    loader.resolve_aliases(implicit=True)
    for package in packages():
        for module_name in package.public_modules:
            module = loader.modules_collection[module_name]
            names = tuple(_names(module))
            if names:
                yield PublicModule(module_name, _docstring(module), names)


def _names(module: griffe.Object | griffe.Alias) -> Iterator[PublicName]:
    exported = module.exports
    for name in sorted(module.members, key=lambda name: (name.lower(), name)):
        member = module.members[name]
        if name.startswith("_") or (exported is not None and name not in exported):
            continue
        is_own = member.is_alias or member.is_class or member.is_function
        if is_own and member.canonical_path.startswith("mesh_"):
            summary = _docstring(member).partition("\n")[0]
            yield PublicName(name, summary)


def _docstring(member: griffe.Object | griffe.Alias) -> str:
    return "" if member.docstring is None else member.docstring.value
