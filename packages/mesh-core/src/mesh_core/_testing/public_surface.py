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

        class TestDoors(PublicSurfaceChecks):
            doors = (mesh_x, mesh_x.spi, mesh_x.testing)

    Attributes:
        doors: The package and its other public modules.
    """

    doors: ClassVar[tuple[ModuleType, ...]]

    def test_each_door_says_what_it_is_for(self) -> None:
        """Check that each public module has a docstring."""
        assert [door.__name__ for door in self.doors if not door.__doc__] == []

    def test_each_door_holds_every_name_it_offers(self) -> None:
        """Check that all listed names can be imported, except those that need pytest."""
        missing = [name for door in self.doors for name in names_of(door) if name not in dir(door)]
        assert missing == []

    def test_each_door_offers_every_public_name_it_holds(self) -> None:
        """Check that all names that look public are listed."""
        stray = [
            f"{door.__name__}.{name}"
            for door in self.doors
            for name in {*dir(door)} - {*names_of(door)}
            # A submodule becomes an attribute as soon as any code has imported it.
            if not name.startswith("_") and f"{door.__name__}.{name}" not in sys.modules
        ]
        assert stray == []

    def test_each_name_has_exactly_one_door(self) -> None:
        """Check that no name is listed in two modules."""
        counts = Counter(name for door in self.doors for name in names_of(door))
        assert [name for name, count in counts.items() if count > 1] == []

    def test_each_name_is_its_own(self) -> None:
        """Check that each object is listed under its own name."""
        renamed = [name for name, it in self._offered() if getattr(it, "__name__", name) != name]
        assert renamed == []

    def test_each_class_and_function_says_what_it_is(self) -> None:
        """Check that every listed class and function has a docstring."""
        silent = [name for name, it in self._offered() if callable(it) and not it.__doc__]
        assert silent == []

    def test_each_method_of_a_class_says_what_it_does(self) -> None:
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
        return [(name, getattr(door, name)) for door in self.doors for name in names_of(door)]


def names_of(door: ModuleType) -> list[str]:
    """Return the names that the source of a public module lists: in `__all__`, or by `a as a`."""
    if hasattr(door, "__all__"):
        return list(door.__all__)
    source = Path(inspect.getfile(door)).read_text(encoding="utf-8")
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    return [name.name for node in imports for name in node.names if name.asname == name.name]
