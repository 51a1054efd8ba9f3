"""Comparison of values of a replay with recorded ones."""

from __future__ import annotations

from typing import Any

from mesh_core._calls.channel import Port
from mesh_core._recording.redacted import Redacted
from mesh_core._serialization.pickler import decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

__all__ = ["differs", "shown"]

_SHOWN_LEN_MAX = 400
_DEPTH_MAX = 20


def differs(recorded: bytes, body: bytes, buffers: Sequence[Buffer]) -> tuple[str, str] | None:
    """Compare an encoded value with the recorded one; return the text of both if they differ."""
    if recorded == body:
        return None
    try:
        before, now = decode(recorded), decode(body, buffers)
    except Exception:
        # For example a value whose class no longer exists: its pickle cannot be compared.
        return None
    return None if is_same(before, now) else (shown(before), shown(now))


def is_same(one: Any, other: Any, depth: int = 0) -> bool:
    """Return whether two values are equal, as far as this can be decided."""
    if type(one) is Redacted or type(other) is Redacted:
        # A redacted value is not known, and a replay passes it on.
        return True
    if type(one) is not type(other):
        return False
    if depth > _DEPTH_MAX or isinstance(one, Port):
        # A channel of the actor has another address in each run.
        return True
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(
            is_same(a, b, depth + 1) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            is_same(value, other[key], depth + 1) for key, value in one.items()
        )
    if isinstance(one, float) and one != one:
        return bool(other != other)
    inherited: Any = object.__eq__
    if type(one).__eq__ is inherited:
        # This compares identity, which differs for every copy.
        slots = getattr(one, "__dict__", None)
        return slots is None or is_same(slots, other.__dict__, depth + 1)
    try:
        equal = one == other
        every = getattr(equal, "all", None)
        return bool(equal if every is None else every())
    except Exception:
        return True


def shown(value: object) -> str:
    """Return a value as text of limited length."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return text if len(text) <= _SHOWN_LEN_MAX else f"{text[:_SHOWN_LEN_MAX]}..."
