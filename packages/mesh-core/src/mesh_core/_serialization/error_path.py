"""Search for the object in a message that cannot be pickled; runs only after an error.

The search pickles ever smaller parts and follows the part that fails: into containers, attributes,
slots and the variables that a function captures.
"""

from __future__ import annotations

from mesh_core._errors import Unpicklable, safe_str
from mesh_core._tensor_engine import RequiresTensorEngine

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
    value: Any,
    error: Exception,
    probe: Probe,
    names: Sequence[str] | None = None,
    *,
    what: str = "value",
) -> Unpicklable:
    """Create the error that names the object that cannot be pickled and its path.

    Args:
        value: The message: `(args, kwargs)` if there are names, otherwise any value.
        error: The exception that pickling it raised.
        probe: Function that pickles a value and raises any exception of that.
        names: The names of the positional parameters, as far as they are known.
        what: A noun for the value, if it is not a call.
    """
    if isinstance(error, RecursionError):
        return Unpicklable(
            f"{what} is nested too deeply to be sent, for example as a long linked list: flatten "
            "it, or send it in parts"
        )
    parts = [(what, value)] if names is None else list(_arguments(value, names))
    path, culprit, error = _search(parts, error, probe)
    if isinstance(error, RequiresTensorEngine):
        return Unpicklable(f"{path}: {error}", path=path)
    known = _remedy(culprit)
    if known is not None:
        return Unpicklable(f"{path}: cannot pickle {known}", path=path)
    reason = safe_str(error)[:_TEXT_LEN_MAX]
    if _refuses(culprit, error):
        # The class of the object has already explained the reason and the remedy.
        return Unpicklable(f"{path}: {reason}", path=path)
    if not reason.startswith("cannot pickle"):
        reason = f"cannot pickle it: {type(error).__qualname__}: {reason}{_line_of(error)}"
    return Unpicklable(f"{path}: {reason}: {_GENERAL_REMEDY}", path=path)


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
    """Follow the failing parts; return the path, the value and the exception of the last one."""
    path, culprit = "value", None
    seen: set[int] = set()
    for _ in range(_DEPTH_MAX):
        failing = _first_failing(parts, probe, seen)
        if failing is None:
            break
        step, culprit, error = failing
        path = step
        is_whole = isinstance(error, RequiresTensorEngine) and _has_own_reduce(culprit)
        if is_whole or _refuses(culprit, error):
            # The object refuses as a whole and explains the remedy; its attributes would not help.
            break
        seen.add(id(culprit))
        parts = [(path + inner, part) for inner, part in _parts(culprit)]
    return path, culprit, error


def _has_own_reduce(value: Any) -> bool:
    """Return whether the class of a value customizes how the value is pickled."""
    names = ("__reduce__", "__reduce_ex__")
    return any(getattr(type(value), name) is not getattr(object, name) for name in names)


def _refuses(culprit: Any, error: Exception) -> bool:
    """Return whether the class of a value itself refused to pickle it, not one of its parts."""
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
    """Yield the parts of a value, each with the path step that leads to it."""
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
    """Yield the objects that a function captures: closure, defaults and the globals it uses."""
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
    """Yield the attributes of an object, in its `__dict__` and its slots."""
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


def _line_of(error: Exception) -> str:
    """Return the line of the user's code that raised an error, such as one of a `__reduce__`."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or traceback.tb_frame.f_code.co_name not in _REDUCERS:
        return ""
    code = traceback.tb_frame.f_code
    return f" ({code.co_filename}:{traceback.tb_lineno}, in {code.co_qualname})"


_GENERAL_REMEDY = "leave it out, or give its class a __reduce__ or __getstate__"
_FILES = ("TextIOWrapper", "BufferedReader", "BufferedWriter", "BufferedRandom", "FileIO")
_REMEDIES = (
    (("lock", "RLock", "Condition", "Event", "Semaphore"), "create it where it is used"),
    (("generator", "coroutine", "async_generator"), "send a list, or the data it is made from"),
    (("socket", *_FILES), "open it where it is used"),
    (("frame", "traceback"), "send its text"),
    (("module",), "import it where it is used"),
)
"""Remedies for the most common types, by the name of the type."""


def _remedy(culprit: Any) -> str | None:
    """Return the type of the object, and for common types an alternative."""
    kind = type(culprit)
    for names, remedy in _REMEDIES:
        if kind.__name__ in names:
            module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
            return f"{module + kind.__qualname__!r} object: {remedy}"
    return None
