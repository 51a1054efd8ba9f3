"""The class of a replayed actor: from its module as it is now, so that a corrected one is used."""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
from pathlib import Path
from types import CodeType, ModuleType

from mesh_core._replay.errors import ReplayError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._cases.case import Case

__all__ = ["changed_modules", "current_class", "reload_script"]

_SCRIPT = "__mesh_main__"
_DEFINITIONS = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
)


def current_class(recorded: type, case: Case) -> type:
    """Return the class of an actor as its source defines it now.

    A class of a script was sent by value, so it is loaded from the script again. If the script does
    not exist here, the source in the case is used.

    Args:
        recorded: The class that the spawn request contains.
        case: The case.

    Raises:
        ReplayError: The script no longer defines the class.
    """
    if recorded.__module__ not in ("__main__", _SCRIPT):
        return recorded
    described = case.modules.get("__main__")
    if described is None:
        return recorded
    module = sys.modules.get(_SCRIPT)
    if module is None or module.__file__ != described["file"]:
        module = _load_script(described["file"], described["source"])
    found: Any = module
    for part in recorded.__qualname__.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type):
        return found
    if "<locals>" in recorded.__qualname__:
        return recorded
    raise ReplayError(f"{described['file']} no longer defines class {recorded.__qualname__!r}")


def reload_script() -> None:
    """Load the script again when `current_class` needs it, so that its global state is new."""
    sys.modules.pop(_SCRIPT, None)


def changed_modules(case: Case) -> list[str]:
    """Return the files that differ from the recorded run, or do not exist here."""
    changed = []
    for described in case.modules.values():
        try:
            text = Path(described["file"]).read_bytes()
        except OSError:
            changed.append(f"{described['file']} (does not exist here)")
            continue
        if hashlib.sha256(text).hexdigest() != described["sha256"]:
            changed.append(described["file"])
    return changed


def _load_script(file: str, recorded: str) -> ModuleType:
    """Execute the definitions of a script, but not its program."""
    try:
        source = Path(file).read_text(encoding="utf-8")
        folder = str(Path(file).parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
    except OSError:
        source = recorded
    module = ModuleType(_SCRIPT)
    module.__file__ = file
    sys.modules[_SCRIPT] = module
    exec(_compiled(source, file), module.__dict__)
    return module


@functools.lru_cache(maxsize=4)
def _compiled(source: str, file: str) -> CodeType:
    tree = ast.parse(source, file)
    if not _is_guarded(tree):
        # Without a guard, its top level is the program: calls there are not executed.
        tree.body = [node for node in tree.body if _is_definition(node)]
    return compile(tree, file, "exec")


def _is_guarded(tree: ast.Module) -> bool:
    """Return whether the script runs its program only as `__main__`."""
    return any(
        isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in tree.body
    )


def _is_definition(node: ast.stmt) -> bool:
    if isinstance(node, _DEFINITIONS):
        return True
    is_assignment = isinstance(node, (ast.Assign, ast.AnnAssign))
    return is_assignment and not any(isinstance(one, ast.Call) for one in ast.walk(node))
