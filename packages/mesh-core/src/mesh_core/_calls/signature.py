"""Properties of calls that follow from the signature of a method."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["Arity", "is_async"]

#: The parameters of `Endpoint.options`.
_CALL_OPTIONS = ("timeout", "return_exceptions")


def is_async(method: Callable[..., Any]) -> bool:
    """Return whether calling the method returns a coroutine; unwraps partials and wrappers."""
    if hasattr(method, "__code__"):
        return bool(method.__code__.co_flags & 0x80)
    return bool(_load_inspect().iscoroutinefunction(method))


class Arity:
    """The number of positional arguments of a method, for the fast check on every call."""

    __slots__ = ("_least", "_most", "_skip", "names")

    def __init__(self, least: int, most: int, skip: int, names: tuple[str, ...] = ()) -> None:
        self._least = least
        self._most = most
        self._skip = skip
        #: The names of the positional parameters, for error messages; empty if unknown.
        self.names: tuple[str, ...] = names

    @classmethod
    def of(cls, method: Any, skip: int) -> Arity:
        code = getattr(method, "__code__", None)
        if code is None or getattr(method, "__wrapped__", None) is not None:
            return cls(1, 0, skip, _wrapped_names(method, skip))
        most = sys.maxsize if code.co_flags & 0x04 else code.co_argcount - skip
        least = code.co_argcount - skip - len(method.__defaults__ or ())
        has_required_keyword = code.co_kwonlyargcount > len(method.__kwdefaults__ or ())
        names = code.co_varnames[skip : code.co_argcount]
        if has_required_keyword:
            return cls(1, 0, skip, names)
        return cls(max(least, 0), most, skip, names)

    def fits(self, count: int) -> bool:
        return self._least <= count <= self._most

    def bind(self, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise the `TypeError` that a direct call of the method would raise, if any."""
        signature = _load_inspect().signature(method)
        try:
            signature.bind(*(None,) * self._skip, *args, **kwargs)
        except TypeError as error:
            raise TypeError(
                f"{method.__qualname__}{_shown(signature, self._skip)}: {error}"
                f"{_hint(signature, self._skip, kwargs)}"
            ) from None


def _wrapped_names(method: Any, skip: int) -> tuple[str, ...]:
    """Return the names of the positional parameters of the innermost wrapped function, if known."""
    while getattr(method, "__wrapped__", None) is not None:
        method = method.__wrapped__
    code = getattr(method, "__code__", None)
    return () if code is None else code.co_varnames[skip : code.co_argcount]


def _shown(signature: Any, skip: int) -> str:
    """Return the parameters that a caller gives, without annotations."""
    parameters = list(signature.parameters.values())[skip:]
    plain = [one.replace(annotation=one.empty) for one in parameters]
    return str(signature.replace(parameters=plain, return_annotation=signature.empty))


def _hint(signature: Any, skip: int, kwargs: dict[str, Any]) -> str:
    """Return how to correct a common mistake, or an empty text."""
    first = next(iter(signature.parameters), None)
    if skip and first not in ("self", "cls", "_self", None):
        return f": add the parameter self, because {first!r} receives the actor"
    for name in _CALL_OPTIONS:
        if name in kwargs and name not in signature.parameters:
            return f": options of the call come before the verb: .options({name}=...).call(...)"
    return ""


def _load_inspect() -> Any:
    """Import `inspect`, which only unusual methods and wrong arguments need, on first use."""
    import inspect  # noqa: PLC0415

    return inspect
