"""What goes wrong between a directory of the client and its mounts."""

from __future__ import annotations

from mesh_core import MeshError

__all__ = ["FilesError", "MountError", "MountForbidden", "SnapshotError", "StoreError"]


class FilesError(MeshError):
    """Files of the client could not be shown on a host."""


class SnapshotError(FilesError):
    """A directory could not be read as it was at one moment, or its description is damaged."""


class StoreError(FilesError):
    """The chunks of a host cannot be kept: its folder is not safe, or its disk is full."""


class MountError(FilesError):
    """Nothing could be mounted there, or it could not be unmounted."""


class MountForbidden(MountError):
    """This machine lets this user mount nothing at all."""
