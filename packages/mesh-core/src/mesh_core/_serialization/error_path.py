"""Where in a message the value sits that cannot travel: looked for only once it failed.

The search pickles ever smaller parts, and follows the one that fails: into containers, attributes,
slots, and the variables that a function carries along.
"""

from __future__ import annotations

from mesh_core._errors import Unpicklable, safe_str
from mesh_core._meshes.activation import NeedsLayer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    Probe = Callable[[object], object]

__all__ = ["unpicklable"]

_DEPTH_MAX = 32
_PARTS_MAX = 10_000
_TEXT_LEN_MAX = 500
_REDUCERS = frozenset({"__reduce__", "__reduce_ex__", "__getstate__"})
_NO_SLOTS = frozenset({"__dict__", "__weakref__"})


def unpicklable(
    value: Any, error: Exception, probe: Probe, names: Sequence[str] | None = None
) -> Unpicklable:
    """Makes the error that says what cannot travel and where it is.

    Args:
        value: What was to travel: `(args, kwargs)` if there are names, or any value.
        error: What pickling it raised.
        probe: Pickles a value, raising what that raises.
        names: The names of the positional parameters, as far as they are known.
    """
    if isinstance(error, RecursionError):
        return Unpicklable(
            "value is nested too deeply to be sent: flatten it, or send it in parts (is it a long "
            "linked list)"
        )
    parts = [("value", value)] if names is None else list(_arguments(value, names))
    path, culprit, error = _search(parts, error, probe)
    if isinstance(error, NeedsLayer):
        return Unpicklable(f"{path}: {error}", path=path)
    reason = safe_str(error)[:_TEXT_LEN_MAX]
    if _refuses(culprit, error):
        # Its class has said why, and what to do.
        return Unpicklable(f"{path}: {reason}", path=path)
    kind = type(error).__qualname__
    said = reason if reason.startswith("cannot pickle") else f"cannot pickle it: {kind}: {reason}"
    hint = _hint(culprit)
    return Unpicklable(f"{path}: {said}: {hint}", path=path)


def _arguments(
    call: tuple[tuple[Any, ...], dict[str, Any]], names: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    args, kwargs = call
    for position, value in enumerate(args):
        name = repr(names[position]) if position < len(names) else str(position)
        yield f"argument {name}", value
    for keyword, value in kwargs.items():
        yield f"argument {keyword!r}", value


def _search(
    parts: list[tuple[str, Any]], error: Exception, probe: Probe
) -> tuple[str, Any, Exception]:
    """Follows the parts that fail, and gives the path, value and error of the last."""
    path, culprit = "value", None
    seen: set[int] = set()
    for _ in range(_DEPTH_MAX):
        failing = _first_failing(parts, probe, seen)
        if failing is None:
            break
        step, culprit, error = failing
        path = step
        is_whole = isinstance(error, NeedsLayer) and _has_own_reduce(culprit)
        if is_whole or _refuses(culprit, error):
            # The value refuses as a whole, and says what to do: its attributes explain nothing.
            break
        seen.add(id(culprit))
        parts = [(path + inner, part) for inner, part in _parts(culprit)]
    return path, culprit, error


def _has_own_reduce(value: Any) -> bool:
    """Whether the class of a value says itself how the value is pickled."""
    names = ("__reduce__", "__reduce_ex__")
    return any(getattr(type(value), name) is not getattr(object, name) for name in names)


def _refuses(culprit: Any, error: Exception) -> bool:
    """Says whether it was the class of a value that refused to pickle it, and not a part of it."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or traceback.tb_frame.f_code.co_name not in _REDUCERS:
        return False
    return isinstance(error, TypeError) and traceback.tb_frame.f_locals.get("self") is culprit


def _first_failing(
    parts: list[tuple[str, Any]], probe: Probe, seen: set[int]
) -> tuple[str, Any, Exception] | None:
    for step, value in parts[:_PARTS_MAX]:
        if id(value) in seen:
            continue
        try:
            probe(value)
        except Exception as error:
            return step, value, error
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Gives what a value is made of, each part behind how it is reached from there."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"[{_short(key)}]", item
        for key in value:
            yield f" (its key {_short(key)})", key
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield f"[{position}]", item
    elif isinstance(value, (set, frozenset)):
        for item in value:
            yield f" (its element {_short(item)})", item
    elif callable(value) and hasattr(value, "__self__"):
        yield from _named(value, "__self__", "__func__")
    elif hasattr(value, "__code__") and hasattr(value, "__globals__"):
        yield from _captured(value)
    if isinstance(value, type):
        for name, item in vars(value).items():
            if not name.startswith("__") or hasattr(item, "__code__"):
                yield f".{name}", item
    else:
        yield from _attributes(value)


def _named(value: Any, *names: str) -> Iterator[tuple[str, Any]]:
    for name in names:
        if hasattr(value, name):
            yield f".{name}", getattr(value, name)


def _captured(function: Any) -> Iterator[tuple[str, Any]]:
    """Gives what a function carries along: its closure, defaults and the globals it names."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f" (its variable {name!r})", cell.cell_contents
        except ValueError:
            continue  # not assigned yet
    for default in function.__defaults__ or ():
        yield " (a default)", default
    for name in code.co_names:
        if name in function.__globals__:
            yield f" (the global {name!r} that it uses)", function.__globals__[name]


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Gives the attributes that an object keeps, in its dictionary and its slots."""
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict):
        for name, item in own.items():
            yield f".{name}", item
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        names = (slots,) if isinstance(slots, str) else tuple(slots)
        yield from _named(value, *(name for name in names if name not in _NO_SLOTS))


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        return f"<{type(value).__qualname__}>"
    return text if len(text) <= 40 else f"{text[:37]}..."


_HINTS = (
    (("lock", "RLock", "Condition", "Event", "Semaphore"), "make it where it is used"),
    (("generator", "coroutine", "async_generator"), "send a list, or what it is made from"),
    (("socket", "TextIOWrapper", "BufferedReader", "BufferedWriter"), "open it where it is used"),
    (("frame", "traceback"), "send its text"),
    (("module",), "import it where it is used"),
)
"""What to do about the usual culprits, by the name of their type."""


def _hint(culprit: Any) -> str:
    name = type(culprit).__name__
    for names, hint in _HINTS:
        if name in names:
            return hint
    return "leave it out, or give its class a __reduce__ or __getstate__"
