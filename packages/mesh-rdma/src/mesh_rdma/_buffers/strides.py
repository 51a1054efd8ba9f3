"""Strides of arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["is_dense"]


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether elements are dense, in any order of dimensions; strides count elements."""
    wanted = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1:
            if stride != wanted:
                return False
            wanted *= size
    return True
