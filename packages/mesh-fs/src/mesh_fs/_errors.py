"""What goes wrong between a directory of the client and its mounts."""

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
    """A directory could not be read as it was at one moment, or its description is damaged."""


class StoreError(FilesError):
    """The chunks of a host cannot be kept: its folder is not safe, or its disk is full."""


class MountError(FilesError):
    """Nothing could be mounted there, or it could not be unmounted."""


class MountForbidden(MountError):
    """This machine lets this user mount nothing at all."""


class ChunksMissing(MountError):
    """Chunks that were there are damaged or gone, which was seen when they were read."""


class WatchError(FilesError):
    """Changes of a directory cannot be watched."""


class WorkspaceError(FilesError):
    """Files could not be written out into the directory of a host."""


class ReloadError(FilesError):
    """Processes go on with the old code of some modules; the files on the hosts are new.

    Attributes:
        rank: The first such process in its mesh, counted from 0; -1 if it was not told.
        module: The name of the module.
        cause: What was raised, as text: its class may not exist here.
        others: Texts like this error's own, for each further module and process.
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
