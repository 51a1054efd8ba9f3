"""A call that cannot be answered, and what the caller is to do."""

from __future__ import annotations

from typing import Any

__all__ = ["Refusal"]


class Refusal(Exception):
    """Ends a call with a status other than OK."""

    def __init__(self, code: Any, words: str) -> None:
        super().__init__(words)
        self.code: Any = code
        self.words: str = words
