"""Detects whether a table has changed since something was derived from it."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

__all__ = ["are_same"]


def are_same(before: Sequence[pa.RecordBatch], now: Sequence[pa.RecordBatch]) -> bool:
    """Return whether these are identical batch objects, whose rows never change."""
    return len(before) == len(now) and all(map(is_, before, now))
