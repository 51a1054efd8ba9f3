"""A name for each host of a mesh, for where several of them are one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mesh_core import Point

__all__ = ["subdirectory", "with_subdirectory"]

_SUBDIR = "$SUBDIR"


def subdirectory(point: Point) -> str:
    """Gives a name that no other host of the mesh has, as `hosts_0`."""
    return "_".join(f"{label}_{place}" for label, place in point.items())


def with_subdirectory(path: str, point: Point) -> str:
    """Puts that name where a path asks for it."""
    return path.replace(_SUBDIR, subdirectory(point))
