"""The time column of all tables with a history."""

from __future__ import annotations

__all__ = ["TIME_COLUMN"]

#: The time of the event, in microseconds since the epoch.
TIME_COLUMN = "timestamp_us"
