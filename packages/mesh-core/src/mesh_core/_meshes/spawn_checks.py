"""Checks before a spawn (dimensions, name, class, arguments), and the modules to preload."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from mesh_core._calls.actor import Actor
from mesh_core._calls.signature import Arity
from mesh_core._configuration.config import effective
from mesh_core._suggestions import similar_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "check_arguments",
    "check_name_and_class",
    "checked_dims",
    "modules_in_use",
    "requested_dims",
]

_DEFAULT_DIM = "procs"
_PROC_OPTIONS = (
    "per_host", "bootstrap", "name", "proc_bind", "bootstrap_command", "memory_limit"
)  # fmt: skip
# The optimizers and DistributedDataParallel of torch import its compiler when they are first used,
# which takes each process more than a second.
_USERS_OF_COMPILER = ("torch.optim", "torch.nn.parallel.distributed")
_COMPILER = "torch._dynamo"


def requested_dims(
    per_host: Mapping[str, int] | int | None, named: Mapping[str, Any]
) -> dict[str, int]:
    """Return the dimensions that the arguments of `spawn_procs` describe, not checked yet.

    Args:
        per_host: The dimensions, or the number of processes in a single dimension.
        named: The keyword arguments that are not options: more dimensions.

    Raises:
        TypeError: `per_host` is neither, or a keyword argument is not a dimension.
    """
    if per_host is None:
        dims = {}
    elif isinstance(per_host, Mapping):
        dims = dict(per_host)
    elif isinstance(per_host, int) and not isinstance(per_host, bool):
        dims = {_DEFAULT_DIM: per_host}
    else:
        raise TypeError(
            f"spawn_procs cannot start {per_host!r} processes: give their number, as in "
            'spawn_procs(4), or named dimensions, as in spawn_procs({"gpus": 4})'
        )
    for label, size in named.items():
        if not isinstance(size, int):
            meant = similar_name(label, _PROC_OPTIONS)
            hint = f"did you mean {meant!r}?" if meant else f"use {', '.join(_PROC_OPTIONS)}"
            raise TypeError(f"spawn_procs has no option {label!r}: {hint}")
        if label in dims:
            raise TypeError(f"dimension {label!r} is given twice: leave out one of them")
        dims[label] = size
    return dims


def check_name_and_class(name: object, cls: object) -> None:
    """Check the first two arguments of `spawn`.

    Raises:
        TypeError: They are missing or in the wrong order.
        ValueError: The second one is not a class that derives from `Actor`.
    """
    if isinstance(name, type):
        text = cls if isinstance(cls, str) else name.__name__.lower()
        raise TypeError(
            "spawn takes a name before the class of the actors: "
            f'spawn("{text}", {name.__qualname__}, ...)'
        )
    if not isinstance(name, str):
        raise TypeError(f"spawn takes a name as its first argument, not {name!r}")
    if cls is None:
        raise TypeError(f'spawn takes the class of the actors, too: spawn("{name}", Worker, ...)')
    if isinstance(cls, Actor):
        kind = type(cls).__qualname__
        raise ValueError(
            f"spawn takes the class {kind}, not an instance, which it creates in each process: "
            f'spawn("{name}", {kind}, ...) with the arguments of {kind}.__init__'
        )
    if not isinstance(cls, type):
        raise ValueError(f"{cls!r} is not a class: pass a class that derives from Actor")
    if not issubclass(cls, Actor):
        raise ValueError(
            f"{cls.__qualname__} is not a subclass of Actor: "
            f"derive it, as in class {cls.__name__}(Actor)"
        )


def checked_dims(dims: Mapping[str, int], taken: tuple[str, ...]) -> dict[str, int]:
    """Return the new dimensions of processes, which follow the taken dimensions.

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
    if any(name.startswith(_USERS_OF_COMPILER) for name in names):
        names.append(_COMPILER)
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
