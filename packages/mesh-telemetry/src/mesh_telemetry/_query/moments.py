"""Conversion of times in arguments of the public API."""

from __future__ import annotations

from datetime import datetime

__all__ = ["microseconds"]


def microseconds(when: float | datetime | None) -> int | None:
    """Convert a time to microseconds since the epoch.

    Args:
        when: Seconds since the epoch, or a `datetime` with a time zone, or None.

    Raises:
        ValueError: The `datetime` has no time zone.
    """
    if when is None:
        return None
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ValueError(f"{when!r} has no time zone: pass one, such as datetime.UTC")
        when = when.timestamp()
    return int(when * 1e6)
