"""The column that every table with a past has."""

from __future__ import annotations

__all__ = ["TIME_COLUMN"]

#: When it happened, in microseconds since the epoch.
TIME_COLUMN = "timestamp_us"
