"""Whether a table is still the one that it was when something was made of it."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

__all__ = ["are_same"]


def are_same(before: Sequence[pa.RecordBatch], now: Sequence[pa.RecordBatch]) -> bool:
    """Says whether these are the very same batches, whose rows never change."""
    return len(before) == len(now) and all(map(is_, before, now))
