"""Executes changed modules again in a process that has imported them."""

from __future__ import annotations

import importlib
import linecache
import symtable
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mesh_core import Actor, endpoint
from mesh_fs._reload.import_graph import Imports, dependents, in_order, module_imports
from mesh_fs._reload.live_update import update
from mesh_fs._reload.module_sources import ModuleSources

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["Reloaded", "Reloader"]


@dataclass(frozen=True)
class Reloaded:
    """The result of a reload in one process.

    Attributes:
        modules: The modules that were executed again, in this order.
        failures: The modules that keep their old code, and the exception of each as text.
    """

    modules: tuple[str, ...]
    failures: tuple[tuple[str, str], ...]


class Reloader(Actor):
    """Keeps the modules of its process that come from some directories up to date.

    Args:
        directories: The directories, as named on the hosts; some may exist only on other hosts.
    """

    def __init__(self, directories: tuple[str, ...]) -> None:
        self._sources = ModuleSources(directories)
        self._sources.begin()

    @endpoint
    def reload(self) -> Reloaded:
        """Execute changed modules again, and the modules that have imported names from them.

        A module that fails is restored, and modules that have imported names from it are not
        executed.
        """
        importlib.invalidate_caches()
        texts = self._sources.now()
        changed = {name for name, text in texts.items() if self._sources.text(name) != text}
        graph: dict[str, Imports] = {}
        failures: dict[str, str] = {}
        for name, text in texts.items():
            try:
                graph[name] = module_imports(name, text, is_package=_is_package(name))
            except (SyntaxError, ValueError) as error:
                # An error in a file that has not changed is not new, because the file was executed
                # before.
                failures |= {name: _describe(error)} if name in changed else {}
        modules: list[str] = []
        left = set(failures)
        for name in in_order(dependents(changed, graph) - left, graph):
            if graph[name].origins & left:
                # It is executed after the module on which it depends can be executed.
                self._sources.note(name, None)
                left.add(name)
            elif (why := self._run(name, texts[name])) is not None:
                failures[name] = why
                left.add(name)
            else:
                modules.append(name)
        return Reloaded(tuple(modules), tuple(failures.items()))

    def __cleanup__(self, error: Exception | None) -> None:
        self._sources.end()

    def _run(self, name: str, text: bytes) -> str | None:
        """Execute a module again; if that fails, restore it and return the error."""
        module = sys.modules[name]
        names_before = _names(self._sources.text(name))
        before = dict(vars(module))
        try:
            importlib.reload(module)
        except (Exception, SystemExit) as error:
            _restore(module, before)
            self._sources.note(name, None)
            return _describe(error)
        for gone in names_before - _names(text):
            vars(module).pop(gone, None)
        update(before, vars(module), name)
        linecache.checkcache(module.__file__)
        return None


def _is_package(name: str) -> bool:
    return hasattr(sys.modules[name], "__path__")


def _restore(module: ModuleType, before: dict[str, object]) -> None:
    names = vars(module)
    for name in names.keys() - before.keys():
        del names[name]
    names.update(before)


def _names(text: bytes | None) -> set[str]:
    """Return the names that the text of a module binds; empty for None or invalid Python."""
    try:
        table = symtable.symtable((text or b"").decode(), "", "exec")
    except (SyntaxError, ValueError):
        return set()
    found = {
        one.get_name() for one in table.get_symbols() if one.is_assigned() or one.is_imported()
    }
    return {name for name in found if not name.startswith("__")}


def _describe(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()
