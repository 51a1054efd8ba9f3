"""The page of errors describes each public exception of each package, and no other."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator

from tests.docs.markdown import Document
from tools.workspace import ROOT, packages


def public_exceptions() -> Iterator[str]:
    """Yield the names of the exceptions that packages export."""
    for package in packages():
        for name in package.public_modules:
            module = pkgutil.resolve_name(name)
            for exported in getattr(module, "__all__", None) or dir(module):
                found = getattr(module, exported)
                is_error = inspect.isclass(found) and issubclass(found, BaseException)
                if is_error and found.__module__.startswith("mesh_") and exported[0] != "_":
                    yield exported


def test_each_public_exception_has_a_section() -> None:
    lines = Document(ROOT / "docs" / "errors.md").lines
    described = [line.removeprefix("### ").strip("`") for line in lines if line.startswith("### ")]
    assert sorted(described) == sorted(set(public_exceptions()))
