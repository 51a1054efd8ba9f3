"""The source text that each module of some directories was last executed from."""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

__all__ = ["ModuleSources"]

_SUFFIX = ".py"


class ModuleSources(MetaPathFinder):
    """A finder that behaves like Python's, and keeps the text of modules below some directories.

    These modules are always compiled from source: Python recognizes outdated bytecode only by the
    modification time in whole seconds and the size, and may therefore use an old file.

    Args:
        directories: The directories, as named on the hosts.
    """

    def __init__(self, directories: Sequence[str]) -> None:
        # A directory name may contain symbolic links, and an import may use either form.
        self._directories = tuple(
            {
                os.path.join(one, "")
                for directory in directories
                for one in (os.path.abspath(directory), os.path.realpath(directory))
            }
        )
        self._texts: dict[str, bytes | None] = {}

    def begin(self) -> None:
        """Install the finder; assume that modules already imported match their files."""
        place = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else 0
        sys.meta_path.insert(place, self)
        for name, path in self._imported().items():
            self._texts[name] = read_text(path)

    def end(self) -> None:
        """Uninstall the finder."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Find a module like the default finder."""
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or type(spec.loader) is not SourceFileLoader:
            return spec
        if self._is_ours(spec.origin):
            spec.loader = _TextLoader(fullname, spec.origin, self)
        return spec

    def note(self, name: str, text: bytes | None) -> None:
        """Record the executed text of a module; None if it must be executed again."""
        self._texts[name] = text

    def text(self, name: str) -> bytes | None:
        """Return the executed text of a module; None if it must be executed again."""
        return self._texts.get(name)

    def now(self) -> dict[str, bytes]:
        """Return the current text of the files of all imported modules whose files can be read."""
        found = {name: read_text(path) for name, path in self._imported().items()}
        return {name: text for name, text in found.items() if text is not None}

    def _imported(self) -> dict[str, str]:
        found = {}
        # Other threads import modules; `list(items())` can be interrupted by them, a copy cannot.
        for name, module in sys.modules.copy().items():
            path: Any = getattr(getattr(module, "__spec__", None), "origin", None)
            # The main program is not a module, although it may also be imported as one.
            if not isinstance(path, str) or name == "__main__":
                continue
            if path.endswith(_SUFFIX) and self._is_ours(path):
                found[name] = path
        return found

    def _is_ours(self, path: str) -> bool:
        return path.startswith(self._directories) or os.path.realpath(path).startswith(
            self._directories
        )


class _TextLoader(SourceFileLoader):
    """Executes a module from its text, and records the text."""

    def __init__(self, fullname: str, path: str, sources: ModuleSources) -> None:
        super().__init__(fullname, path)
        self._sources = sources

    def get_code(self, fullname: str) -> CodeType:
        """Compile the current text."""
        text = self.get_data(self.path)
        code: CodeType = self.source_to_code(text, self.path)
        self._sources.note(fullname, text)
        return code


def read_text(path: str) -> bytes | None:
    """Return the content of a file; None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None
