"""Errors of slices, splits and indexes: subclasses of `ShapeError`.

All of them are also a `ValueError`. An index out of range is an `IndexError`, and an unknown
dimension is both a `KeyError` and a `TypeError`, so that the `except` clause that a reader would
expect catches it. The core also raises them, by name.
"""

from __future__ import annotations

from mesh_core._errors import MeshError

__all__ = ["MeshIndexError", "SelectorError", "ShapeError", "SplitError", "UnknownDim"]


class ShapeError(MeshError, ValueError):
    """A shape cannot be created, or not in this way."""


class MeshIndexError(ShapeError, IndexError):
    """An index, a rank or a point is not in the mesh."""


class UnknownDim(ShapeError, KeyError, TypeError):
    """The mesh has no dimension of this name."""

    def __str__(self) -> str:
        """Return the plain message, which `KeyError` would quote."""
        return Exception.__str__(self)


class SplitError(ShapeError):
    """A dimension cannot be split in the requested way."""


class SelectorError(ShapeError, TypeError):
    """A selector of a dimension is neither an int, a slice nor a list of ints."""


# Tracebacks show the public name, such as mesh_core.UnknownDim.
for _error in (MeshIndexError, SelectorError, ShapeError, SplitError, UnknownDim):
    _error.__module__ = "mesh_core"
