"""From which text each module of some directories was run."""

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
    """Finds modules as Python does, and keeps the text of those below some directories.

    These are always compiled from their text: Python tells compiled files by whole seconds and by
    size, and so takes an old one for a new one.

    Args:
        directories: As the hosts name them.
    """

    def __init__(self, directories: Sequence[str]) -> None:
        # A name may lead through links, and an import may have come by either.
        self._directories = tuple(
            {
                os.path.join(one, "")
                for directory in directories
                for one in (os.path.abspath(directory), os.path.realpath(directory))
            }
        )
        self._texts: dict[str, bytes | None] = {}

    def begin(self) -> None:
        """Takes part in every import from now on; what is imported already is as its file is."""
        place = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else 0
        sys.meta_path.insert(place, self)
        for name, path in self._imported().items():
            self._texts[name] = read_text(path)

    def end(self) -> None:
        """Takes part in no import any more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Finds a module where the one behind would."""
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or type(spec.loader) is not SourceFileLoader:
            return spec
        if self._is_ours(spec.origin):
            spec.loader = _TextLoader(fullname, spec.origin, self)
        return spec

    def note(self, name: str, text: bytes | None) -> None:
        """Says from which text a module is run; None: it has to be run again."""
        self._texts[name] = text

    def text(self, name: str) -> bytes | None:
        """Gives the text from which a module was run; None if it has to be run again."""
        return self._texts.get(name)

    def now(self) -> dict[str, bytes]:
        """Gives what the files of all imported modules hold; those without a file are left out."""
        found = {name: read_text(path) for name, path in self._imported().items()}
        return {name: text for name, text in found.items() if text is not None}

    def _imported(self) -> dict[str, str]:
        found = {}
        for name, module in list(sys.modules.items()):
            path: Any = getattr(getattr(module, "__spec__", None), "origin", None)
            # A program that is run is no module, though it may be imported as one too.
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
    """Runs a module from its text, and says from which."""

    def __init__(self, fullname: str, path: str, sources: ModuleSources) -> None:
        super().__init__(fullname, path)
        self._sources = sources

    def get_code(self, fullname: str) -> CodeType:
        """Compiles the text as it is now."""
        text = self.get_data(self.path)
        code: CodeType = self.source_to_code(text, self.path)
        self._sources.note(fullname, text)
        return code


def read_text(path: str) -> bytes | None:
    """Gives what a file holds; None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None
