"""What the signature of a method tells about its calls."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["Arity", "is_async"]


def is_async(method: Callable[..., Any]) -> bool:
    """Return whether calling the method returns a coroutine; unwraps partials and wrappers."""
    if hasattr(method, "__code__"):
        return bool(method.__code__.co_flags & 0x80)
    return bool(_load_inspect().iscoroutinefunction(method))


class Arity:
    """The number of positional arguments of a method, for the fast check on every call."""

    __slots__ = ("_least", "_most", "_skip")

    def __init__(self, least: int, most: int, skip: int) -> None:
        self._least = least
        self._most = most
        self._skip = skip

    @classmethod
    def of(cls, method: Any, skip: int) -> Arity:
        code = getattr(method, "__code__", None)
        if code is None or getattr(method, "__wrapped__", None) is not None:
            return cls(1, 0, skip)
        most = sys.maxsize if code.co_flags & 0x04 else code.co_argcount - skip
        least = code.co_argcount - skip - len(method.__defaults__ or ())
        has_required_keyword = code.co_kwonlyargcount > len(method.__kwdefaults__ or ())
        return cls(1, 0, skip) if has_required_keyword else cls(max(least, 0), most, skip)

    def fits(self, count: int) -> bool:
        return self._least <= count <= self._most

    def bind(self, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise the `TypeError` that a direct call of the method would raise, if any."""
        try:
            _load_inspect().signature(method).bind(*(None,) * self._skip, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{method.__qualname__}(): {error}") from None


def _load_inspect() -> Any:
    """Import `inspect`, which only unusual methods and wrong arguments need, on first use."""
    import inspect  # noqa: PLC0415

    return inspect
