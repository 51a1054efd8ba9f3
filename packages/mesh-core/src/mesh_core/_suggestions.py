"""Suggestions for misspelt names, for error messages."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["similar_name"]

_CUTOFF = 0.6


def similar_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a misspelt name resembles most, if any."""
    # Only wrong names need it.
    from difflib import get_close_matches  # noqa: PLC0415

    return next(iter(get_close_matches(name, list(known), n=1, cutoff=_CUTOFF)), None)
