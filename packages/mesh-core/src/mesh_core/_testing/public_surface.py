"""Tests of the rules for public modules; every package derives a test class from them."""

from __future__ import annotations

import ast
import inspect
import sys
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["PublicSurfaceChecks"]


class PublicSurfaceChecks:
    """Tests of the public modules of a package: names exist, are documented and are unique.

    Derive a class that pytest collects, and list the public modules:

        class TestPublicModules(PublicSurfaceChecks):
            modules = (mesh_x, mesh_x.spi, mesh_x.testing)

    Attributes:
        modules: The package and its other public modules.
    """

    modules: ClassVar[tuple[ModuleType, ...]]

    def test_each_module_has_a_docstring(self) -> None:
        """Check that each public module has a docstring."""
        assert [module.__name__ for module in self.modules if not module.__doc__] == []

    def test_listed_names_can_be_imported(self) -> None:
        """Check that all listed names can be imported, except those that need pytest."""
        missing = [
            name for module in self.modules for name in names_of(module) if name not in dir(module)
        ]
        assert missing == []

    def test_public_names_are_listed(self) -> None:
        """Check that all names that look public are listed."""
        stray = [
            f"{module.__name__}.{name}"
            for module in self.modules
            for name in {*dir(module)} - {*names_of(module)}
            # A submodule becomes an attribute as soon as any code has imported it.
            if not name.startswith("_") and f"{module.__name__}.{name}" not in sys.modules
        ]
        assert stray == []

    def test_each_name_is_in_one_module(self) -> None:
        """Check that no name is listed in two modules."""
        counts = Counter(name for module in self.modules for name in names_of(module))
        assert [name for name, count in counts.items() if count > 1] == []

    def test_each_object_is_listed_under_its_own_name(self) -> None:
        """Check that each object is listed under its own name."""
        renamed = [name for name, it in self._offered() if getattr(it, "__name__", name) != name]
        assert renamed == []

    def test_each_class_and_function_has_a_docstring(self) -> None:
        """Check that every listed class and function has a docstring."""
        silent = [name for name, it in self._offered() if callable(it) and not it.__doc__]
        assert silent == []

    def test_each_public_method_has_a_docstring(self) -> None:
        """Check that every public method and property of a listed class has a docstring."""
        silent = [
            f"{name}.{method}"
            for name, it in self._offered()
            if inspect.isclass(it)
            for method, member in vars(it).items()
            if not method.startswith("_")
            and (inspect.isfunction(member) or isinstance(member, property))
            and not member.__doc__
        ]
        assert silent == []

    def _offered(self) -> list[tuple[str, Any]]:
        return [
            (name, getattr(module, name)) for module in self.modules for name in names_of(module)
        ]


def names_of(module: ModuleType) -> list[str]:
    """Return the names that the source of a public module lists: in `__all__`, or by `a as a`."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    source = Path(inspect.getfile(module)).read_text(encoding="utf-8")
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    return [name.name for node in imports for name in node.names if name.asname == name.name]
