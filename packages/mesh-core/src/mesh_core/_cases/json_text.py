"""A strict JSON parser for untrusted files; Python's parser accepts more than JSON."""

from __future__ import annotations

import json
from math import isfinite

from mesh_core._cases.errors import InvalidPart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

__all__ = ["DEPTH_MAX", "dump_json", "is_plain", "parse_json"]

# Maximum depth of nested lists and objects.
DEPTH_MAX = 32
# Maximum number of digits of an integer; parsing one with far more digits takes Python very long.
_DIGITS_MAX = 100
_INT_MAX = 10**_DIGITS_MAX


def parse_json(text: bytes, part: str) -> Any:
    """Parse one JSON value.

    Args:
        text: The value in UTF-8.
        part: The part of the case that contains it, for error messages.

    Raises:
        InvalidPart: The text is not JSON, or contains a duplicate key, a number that is not finite
            or too long, or values that are nested too deeply.
    """
    try:
        value = json.loads(
            text.decode(),
            parse_int=_parse_int,
            parse_float=_parse_float,
            parse_constant=_refuse_constant,
            object_pairs_hook=_parse_object,
        )
    except UnicodeDecodeError:
        raise InvalidPart(part, "it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise InvalidPart(part, f"it is not JSON ({error.msg} at character {error.pos})") from None
    except RecursionError:
        raise InvalidPart(part, _TOO_DEEP) from None
    except ValueError as error:
        raise InvalidPart(part, str(error)) from None
    if not is_plain(value):
        raise InvalidPart(part, _TOO_DEEP)
    return value


def dump_json(value: object, part: str) -> bytes:
    """Encode one value that `parse_json` accepts, on a single line of ASCII.

    Raises:
        InvalidPart: The value cannot be expressed in JSON.
    """
    if not is_plain(value):
        raise InvalidPart(part, f"it contains a value that JSON cannot express, or {_TOO_DEEP}")
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def is_plain(value: Any, depth_max: int = DEPTH_MAX) -> bool:
    """Return whether `parse_json` can return an equal value of equal types."""
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return True
    if kind is int:
        return bool(-_INT_MAX < value < _INT_MAX)
    if kind is float:
        return isfinite(value)
    if depth_max <= 0:
        return False
    if kind is list:
        return all(is_plain(one, depth_max - 1) for one in value)
    if kind is dict:
        return all(
            type(name) is str and is_plain(one, depth_max - 1) for name, one in value.items()
        )
    return False


_TOO_DEEP = f"values are nested more than {DEPTH_MAX} deep"


def _parse_int(text: str) -> int:
    if len(text) > _DIGITS_MAX:
        raise ValueError(f"it contains an integer of more than {_DIGITS_MAX} digits")
    return int(text)


def _parse_float(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError("it contains a number that is not finite")
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"it contains {text}, which is not JSON")


def _parse_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("it contains an object with a duplicate name")
    return value
