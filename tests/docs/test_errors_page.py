"""The page of errors describes each public exception of each package, and no other."""

from __future__ import annotations

import inspect
import pickle
import pkgutil
from collections.abc import Iterator

from tests.docs.markdown import Document
from tools.workspace import ROOT, packages


def public_exceptions() -> Iterator[tuple[str, type[BaseException]]]:
    """Yield the exceptions that packages export, each with the module that exports it."""
    for package in packages():
        for name in package.public_modules:
            module = pkgutil.resolve_name(name)
            for exported in getattr(module, "__all__", None) or dir(module):
                found = getattr(module, exported)
                is_error = inspect.isclass(found) and issubclass(found, BaseException)
                if is_error and found.__module__.startswith("mesh_") and exported[0] != "_":
                    yield name, found


def test_each_public_exception_has_a_section() -> None:
    lines = Document(ROOT / "docs" / "errors.md").lines
    described = [line.removeprefix("### ").strip("`") for line in lines if line.startswith("### ")]
    assert sorted(described) == sorted({error.__name__ for _, error in public_exceptions()})


def test_a_traceback_shows_the_public_module_of_each_exception() -> None:
    exporters: dict[type[BaseException], list[str]] = {}
    for module, error in public_exceptions():
        exporters.setdefault(error, []).append(module)
    private = {error for error, modules in exporters.items() if error.__module__ not in modules}
    assert not private
    # Other processes find the class at its address, too.
    assert all(pickle.loads(pickle.dumps(error)) is error for error in exporters)
