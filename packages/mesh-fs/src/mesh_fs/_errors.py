"""Exceptions of mesh-fs."""

from __future__ import annotations

from mesh_core import MeshError

__all__ = [
    "ChunksMissing",
    "FilesError",
    "MountError",
    "MountForbidden",
    "ReloadError",
    "SnapshotError",
    "StoreError",
    "WatchError",
    "WorkspaceError",
]


class FilesError(MeshError):
    """Files of the client could not be shown on a host."""


class SnapshotError(FilesError):
    """A consistent snapshot of a directory could not be taken, or its description is damaged."""


class StoreError(FilesError):
    """A host cannot store chunks: its folder is not safe, or its disk is full."""


class MountError(FilesError):
    """A mount or unmount has failed."""


class MountForbidden(MountError):
    """This machine does not permit this user to mount."""


class ChunksMissing(MountError):
    """Chunks in the store turned out to be damaged or missing when they were read."""


class WatchError(FilesError):
    """Changes of a directory cannot be watched."""


class WorkspaceError(FilesError):
    """Files could not be written into the directory of a host."""


class ReloadError(FilesError):
    """Processes keep the old code of some modules, while the files on the hosts are new.

    Attributes:
        rank: The rank of the first such process in its mesh, counted from 0; -1 if unknown.
        module: The name of the module.
        cause: The exception as text, because its class may not exist in this process.
        others: Texts like this error's message, one for each further module and process.
    """

    def __init__(
        self,
        text: str,
        rank: int = -1,
        module: str = "",
        cause: str = "",
        others: tuple[str, ...] = (),
    ) -> None:
        super().__init__(text, rank, module, cause, others)
        self.rank: int = rank
        self.module: str = module
        self.cause: str = cause
        self.others: tuple[str, ...] = others

    def __str__(self) -> str:
        return str(self.args[0])


# Tracebacks show the public name, such as mesh_fs.MountError.
for _error in (
    FilesError,
    MountError,
    MountForbidden,
    ReloadError,
    SnapshotError,
    StoreError,
    WatchError,
    WorkspaceError,
):
    _error.__module__ = "mesh_fs"
