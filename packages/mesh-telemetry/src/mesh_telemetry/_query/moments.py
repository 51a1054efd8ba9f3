"""Moments, as callers give them."""

from __future__ import annotations

from datetime import datetime

__all__ = ["microseconds"]


def microseconds(when: float | datetime | None) -> int | None:
    """Gives a time as microseconds since the epoch.

    Args:
        when: Seconds since the epoch, or a time with a zone; None for none.

    Raises:
        ValueError: It is a time without a zone.
    """
    if when is None:
        return None
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ValueError(f"{when!r} has no time zone: give one, such as datetime.UTC")
        when = when.timestamp()
    return int(when * 1e6)
