"""What is wrong with a slice, a split, an index: one family under `ShapeError`.

All of them are a `ValueError` as well; an index out of range is an `IndexError`, and a dimension
that does not exist is both a `KeyError` and a `TypeError`, so that the `except` clause a reader
would expect catches it. The core raises them too, by name.
"""

from __future__ import annotations

from mesh_core._errors import MeshError

__all__ = ["MeshIndexError", "SelectorError", "ShapeError", "SplitError", "UnknownDim"]


class ShapeError(MeshError, ValueError):
    """A shape cannot be made, or not in this way."""


class MeshIndexError(ShapeError, IndexError):
    """An index, a rank or a point is not in the mesh."""


class UnknownDim(ShapeError, KeyError, TypeError):
    """The mesh has no dimension of this name."""

    def __str__(self) -> str:
        """Gives the message as it is: a KeyError would put it in quotes."""
        return Exception.__str__(self)


class SplitError(ShapeError):
    """A dimension cannot be split as asked."""


class SelectorError(ShapeError, TypeError):
    """A dimension can be sliced by an int, a slice or a list of ints, and by nothing else."""
