"""Imports of commands and workers, whose start consists of little else."""

from __future__ import annotations

import gc
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["without_collections"]


@contextmanager
def without_collections() -> Iterator[None]:
    """Import modules in the block without garbage collections, and exempt them from later ones.

    Modules remain until the process exits, so collections would free nothing. They would take a
    tenth of the time of the imports.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
