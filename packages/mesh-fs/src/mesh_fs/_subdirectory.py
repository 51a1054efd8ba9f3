"""A folder name for each host of a mesh, for meshes whose hosts share a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mesh_core import Point

__all__ = ["subdirectory", "with_subdirectory"]

_SUBDIR = "$SUBDIR"


def subdirectory(point: Point) -> str:
    """Return a name that is unique among the hosts of the mesh, such as `hosts_0`."""
    return "_".join(f"{label}_{place}" for label, place in point.items())


def with_subdirectory(path: str, point: Point) -> str:
    """Replace `$SUBDIR` in a path by that name."""
    return path.replace(_SUBDIR, subdirectory(point))
