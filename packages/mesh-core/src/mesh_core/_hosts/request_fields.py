"""Fields of requests between machines that do not trust each other yet: JSON, parsed strictly."""

from __future__ import annotations

import base64
import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["RequestFields", "is_plain"]

# The maximum length of a requester's description that is shown to people.
_NAME_LEN_MAX = 300
# The magnitude of numbers to which every clock can be added.
_NUMBER_MAX = 1e15


class RequestFields:
    """A JSON object from another machine, with one accessor per type of field.

    All accessors raise `ValueError` if the field is missing or has another type.

    Raises:
        ValueError: The body is not a JSON object, or contains a number out of range.
    """

    __slots__ = ("_facts",)

    def __init__(self, body: bytes) -> None:
        try:
            facts = json.loads(
                body, parse_float=_finite, parse_constant=_finite, parse_int=_finite_int
            )
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        if not isinstance(facts, dict):
            raise ValueError("it is not a table")
        self._facts: dict[str, Any] = facts

    def whole(self, name: str, least: int, most: int) -> int:
        """Return an integer within bounds."""
        value = self._get(name)
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"{name} is not a whole number from {least} to {most}")
        return value

    def seconds(self, name: str, *, may_be_0: bool = False) -> float:
        """Return a duration in seconds."""
        value = self._get(name)
        if type(value) not in (int, float) or value < 0 or (value == 0 and not may_be_0):
            raise ValueError(f"{name} is not a number {'from' if may_be_0 else 'above'} 0")
        return float(value)

    def octets(self, name: str, count: int) -> bytes:
        """Return `count` bytes, written as hexadecimal digits."""
        value = self._get(name)
        # `fromhex` alone would skip spaces.
        if not isinstance(value, str) or len(value) != 2 * count or not value.isalnum():
            raise ValueError(f"{name} is not {2 * count} hexadecimal digits")
        return bytes.fromhex(value)

    def blob(self, name: str) -> bytes:
        """Return any number of bytes, written in base64."""
        value = self._get(name)
        try:
            return base64.b64decode(value, validate=True)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} is not base64") from error

    def octets_or_none(self, name: str, count: int) -> bytes | None:
        """Return the same as `octets`, or None if the field is null."""
        return None if self._get(name) is None else self.octets(name, count)

    def word(self, name: str, *allowed: str) -> str:
        """Return one of the allowed strings."""
        value = self._get(name)
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"{name} is not one of {', '.join(allowed)}")
        return value

    def name(self, name: str, len_max: int = _NAME_LEN_MAX) -> str:
        """Return a text with unprintable characters replaced, so that it can be shown to people."""
        value = self._get(name)
        if not isinstance(value, str):
            raise ValueError(f"{name} is not a string")
        return _printable(value, len_max)

    def texts(self, name: str) -> list[str]:
        """Return a list of strings."""
        value = self._get(name)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ValueError(f"{name} is not a list of strings")
        return value

    def strings(self, name: str) -> dict[str, str]:
        """Return an object of strings, with unprintable characters replaced."""
        value = self._get(name)
        if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
            raise ValueError(f"{name} is not a table of strings")
        return {_printable(key): _printable(one) for key, one in value.items()}

    def flag(self, name: str) -> bool:
        """Return a boolean."""
        value = self._get(name)
        if not isinstance(value, bool):
            raise ValueError(f"{name} is neither true nor false")
        return value

    def settings(self, name: str) -> Mapping[str, Any]:
        """Return an object of plain values."""
        value = self._get(name)
        if not isinstance(value, dict) or not all(map(is_plain, value.values())):
            raise ValueError(f"{name} is not a table of settings")
        return value

    def _get(self, name: str) -> Any:
        if name not in self._facts:
            raise ValueError(f"{name} is missing")
        return self._facts[name]


def is_plain(value: object) -> bool:
    """Return whether a value can be part of the settings of a request."""
    return (
        value is None
        or isinstance(value, (bool, int, float, str))
        or (isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value))
    )


def _printable(text: str, len_max: int = _NAME_LEN_MAX) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:len_max])


def _finite(text: str) -> float:
    number = float(text)
    if not -_NUMBER_MAX <= number <= _NUMBER_MAX:
        raise ValueError(f"{text[:20]} is not a usable number")
    return number


def _finite_int(text: str) -> int:
    _finite(text)
    return int(text)
