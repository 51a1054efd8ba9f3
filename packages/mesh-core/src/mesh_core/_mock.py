"""Spawning another class in the place of one, for tests."""

from __future__ import annotations

from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["patch_actor", "replacement_of"]

_replacements: dict[type, type] = {}


@contextmanager
def patch_actor(original: type, mock: type) -> Iterator[type]:
    """Spawns `mock` wherever this process spawns `original`, while the block runs.

    Works as a decorator too.

    Args:
        original: The class that the code under test spawns.
        mock: The class to spawn instead; usually derived from `original`.
    """
    before = _replacements.get(original)
    _replacements[original] = mock
    try:
        yield mock
    finally:
        if before is None:
            del _replacements[original]
        else:
            _replacements[original] = before


def replacement_of(cls: type) -> type:
    """Gives the class to spawn in the place of one."""
    return _replacements.get(cls, cls)
