"""Slow variants of tests that a conformance kit contains."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest


def slow_variant(test: Callable[..., None]) -> Callable[..., None]:
    """Return a copy of a test that is marked as slow, for another test class with the same test."""

    @functools.wraps(test)
    def variant(self: Any, /, *args: Any, **kwargs: Any) -> None:
        test(self, *args, **kwargs)

    marked: Callable[..., None] = pytest.mark.slow(variant)
    return marked
