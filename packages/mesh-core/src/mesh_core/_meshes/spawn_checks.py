"""Checks before a spawn (dimensions, arguments), and the modules to preload."""

from __future__ import annotations

import sys

from mesh_core._calls.signature import Arity
from mesh_core._configuration.config import effective

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["check_arguments", "checked_dims", "modules_in_use"]


def checked_dims(dims: Mapping[str, int], taken: tuple[str, ...]) -> dict[str, int]:
    """Return the new dimensions of processes, which follow those that are taken.

    Raises:
        ValueError: A name or a size is invalid, or a name is taken.
    """
    for label, size in dims.items():
        if not isinstance(label, str) or not label.isidentifier():
            raise ValueError(
                f"dimension {label!r} is not a name that slice(...) can be called with"
            )
        if label in taken:
            raise ValueError(f"dimension {label!r} is one of the hosts' already: use another name")
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(
                f"dimension {label!r} has size {size!r}: give a whole number from 1 up"
            )
    return dict(dims)


def modules_in_use() -> tuple[str, ...]:
    """Return the modules that the program has imported and its processes will need, too."""
    wanted = effective().preload
    if wanted is not None:
        return wanted
    main = sys.modules.get("__main__")
    names = []
    for value in list(vars(main).values()) if main is not None else ():
        name = getattr(value, "__name__", None) if isinstance(value, type(sys)) else None
        name = name or getattr(value, "__module__", None)
        if isinstance(name, str) and name in sys.modules and name not in ("__main__", "builtins"):
            names.append(name)
    return tuple(dict.fromkeys(n for n in names if not n.startswith(("mesh_core", "_"))))


def check_arguments(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Check that a class accepts these arguments, before anything is sent.

    Raises:
        TypeError: It does not accept them.
    """
    init = cls.__init__  # type: ignore[misc]
    if init is object.__init__:
        if args or kwargs:
            raise TypeError(f"{cls.__qualname__}() takes no arguments")
        return
    arity = Arity.of(init, 1)
    if kwargs or not arity.fits(len(args)):
        arity.bind(init, args, kwargs)
