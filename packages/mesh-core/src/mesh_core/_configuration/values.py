"""Kinds of setting values, and how each is read from code, a file or the environment.

A reader converts its input to the value or raises `ValueError`. Every kind can be read from text.
In code, text is accepted only if it can express more than a number ("5 min", "64 KiB").
"""

from __future__ import annotations

from os import PathLike

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = [
    "Kind",
    "choice",
    "count",
    "flag",
    "folder",
    "is_module_name",
    "modules",
    "names",
    "seconds",
    "size",
]

_SECONDS = {
    **dict.fromkeys(("ns", "nsec"), 1e-9),
    **dict.fromkeys(("us", "usec"), 1e-6),
    **dict.fromkeys(("ms", "msec"), 1e-3),
    **dict.fromkeys(("", "s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3_600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
    **dict.fromkeys(("w", "week", "weeks"), 604_800.0),
}
_BYTES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _BYTES[f"{_letter}b"] = 1_000**_power
    _BYTES[f"{_letter}ib"] = 1_024**_power
_FLAGS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


class Kind:
    """A kind of value.

    Attributes:
        allowed: Description of the accepted values.
        read: Converts a value from code or a file.
        parse: Converts text from the environment.
    """

    __slots__ = ("allowed", "parse", "read")

    def __init__(
        self,
        allowed: str,
        read: Callable[[Any], Any],
        parse: Callable[[str], Any] | None = None,
        none: str | None = None,
    ) -> None:
        parse = parse or read
        self.allowed = allowed if none is None else f"{allowed}, or None ({none})"
        self.read = read if none is None else _or_none(read, None)
        self.parse = parse if none is None else _or_none(parse, "", "none", "None")


def count(least: int = 0, most: int = 2**63 - 1) -> Kind:
    """Return the kind for integers."""

    def read(given: Any) -> int:
        if isinstance(given, bool) or not hasattr(given, "__index__"):
            raise ValueError
        return _within(given.__index__(), least, most)

    limit = f"a whole number from {least:,}" + (f" to {most:,}" if most < 2**63 - 1 else " up")
    return Kind(limit, read, lambda text: read(int(text)))


def size(least: int = 1, most: int = 2**63 - 1) -> Kind:
    """Return the kind for sizes: a number of bytes, or text such as `64 KiB`."""

    def read(given: Any) -> int:
        if isinstance(given, str):
            return _within(round(_quantity(given, _BYTES)), least, most)
        if isinstance(given, bool) or not hasattr(given, "__index__"):
            raise ValueError
        return _within(given.__index__(), least, most)

    limit = f"from {least:,}" + (f" to {most:,}" if most < 2**63 - 1 else " up")
    return Kind(f"bytes, {limit}, as a whole number or a text such as '64 KiB'", read)


def seconds(*, above_zero: bool = False, none: str | None = None) -> Kind:
    """Return the kind for durations: seconds, a timedelta, or text such as `500ms` or `1h 30m`."""

    def read(given: Any) -> float:
        if isinstance(given, str):
            value = _quantity(given, _SECONDS)
        elif hasattr(given, "total_seconds"):
            value = float(given.total_seconds())
        elif isinstance(given, bool) or not hasattr(given, "__float__"):
            raise ValueError
        else:
            value = float(given)
        if value != value or value == float("inf") or value < 0 or (above_zero and value == 0):
            raise ValueError
        return value

    limit = "more than 0" if above_zero else "0 or more"
    forms = "as a number of seconds, a timedelta, or a text such as '500ms' or '1h 30m'"
    return Kind(f"a duration, {limit}, {forms}", read, none=none)


def flag() -> Kind:
    """Return the kind for True and False."""

    def read(given: Any) -> bool:
        if not isinstance(given, bool):
            raise ValueError
        return given

    def parse(text: str) -> bool:
        if text.lower() not in _FLAGS:
            raise ValueError
        return _FLAGS[text.lower()]

    return Kind("True or False (in the environment also 1, 0, yes, no, on, off)", read, parse)


def choice(*options: str) -> Kind:
    """Return the kind for a fixed set of words."""

    def read(given: Any) -> str:
        if not isinstance(given, str) or given not in options:
            raise ValueError
        return given

    return Kind(" or ".join(repr(option) for option in options), read)


def folder(none: str) -> Kind:
    """Return the kind for the path of a directory."""

    def read(given: Any) -> Any:
        # Most programs set no path, and pathlib is an expensive import.
        from pathlib import Path  # noqa: PLC0415

        if not isinstance(given, (str, PathLike)) or not str(given):
            raise ValueError
        return Path(given)

    return Kind("the path of a directory", read, none=none)


def modules(none: str) -> Kind:
    """Return the kind for names of modules."""

    def read(given: Any) -> tuple[str, ...]:
        if isinstance(given, str) or not hasattr(given, "__iter__"):
            raise ValueError
        names = tuple(given)
        if not all(isinstance(name, str) and is_module_name(name) for name in names):
            raise ValueError
        return names

    def parse(text: str) -> tuple[str, ...]:
        return read([name.strip() for name in text.split(",")])

    allowed = "names of modules, as a tuple or list (in the environment: separated by commas)"
    return Kind(allowed, read, parse, none=none)


def names(none: str) -> Kind:
    """Return the kind for names or patterns: one text, or several."""

    def read(given: Any) -> tuple[str, ...]:
        found = (given,) if isinstance(given, str) else tuple(given)
        if not found or not all(isinstance(name, str) and name for name in found):
            raise ValueError
        return found

    def parse(text: str) -> tuple[str, ...]:
        return read([name.strip() for name in text.split(",")])

    allowed = "names, as one text or as a tuple or list (in the environment: separated by commas)"
    return Kind(allowed, read, parse, none=none)


def _or_none(read: Callable[[Any], Any], *nones: str | None) -> Callable[[Any], Any]:
    return lambda given: None if given in nones else read(given)


def is_module_name(name: str) -> bool:
    """Return whether a text has the form of the name of a module."""
    return all(part.isidentifier() for part in name.split("."))


def _within(value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise ValueError
    return value


def _quantity(text: str, units: dict[str, Any]) -> float:
    """Add up text of numbers with units, such as `1h 30m`."""
    total, rest = 0.0, text.strip().lower().replace("_", "")
    if not rest:
        raise ValueError
    while rest:
        end = next((at for at, char in enumerate(rest) if char not in "0123456789.+-"), len(rest))
        number, rest = rest[:end], rest[end:].lstrip()
        end = next((at for at, char in enumerate(rest) if not char.isalpha()), len(rest))
        unit, rest = rest[:end], rest[end:].lstrip()
        if unit not in units or (not unit and (rest or total)):
            raise ValueError
        total += float(number) * units[unit]
    return total
