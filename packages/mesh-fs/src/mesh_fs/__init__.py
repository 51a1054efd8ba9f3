"""Mount directories of the client on every host of a mesh, and of the hosts on the client."""

from mesh_fs._errors import FilesError as FilesError
from mesh_fs._errors import MountError as MountError
from mesh_fs._errors import MountForbidden as MountForbidden
from mesh_fs._errors import ReloadError as ReloadError
from mesh_fs._errors import SnapshotError as SnapshotError
from mesh_fs._errors import StoreError as StoreError
from mesh_fs._errors import WatchError as WatchError
from mesh_fs._errors import WorkspaceError as WorkspaceError
from mesh_fs._gather.mount import GatherMount as GatherMount
from mesh_fs._gather.mount import gather_mount as gather_mount
from mesh_fs._job_extensions import GatheredMount as GatheredMount
from mesh_fs._job_extensions import RemoteMount as RemoteMount
from mesh_fs._job_extensions import WorkspaceSync as WorkspaceSync
from mesh_fs._mount.host_mount import HostStatus as HostStatus
from mesh_fs._mount.remote_mount import MountHandler as MountHandler
from mesh_fs._mount.remote_mount import remotemount as remotemount
from mesh_fs._options import CacheOptions as CacheOptions
from mesh_fs._options import GatherOptions as GatherOptions
from mesh_fs._options import MountOptions as MountOptions
from mesh_fs._options import SnapshotOptions as SnapshotOptions
from mesh_fs._workspace.host_workspace import HostSync as HostSync
from mesh_fs._workspace.workspace import SyncResult as SyncResult
from mesh_fs._workspace.workspace import Workspace as Workspace
from mesh_fs._workspace.workspace import sync_workspace as sync_workspace


def __getattr__(name: str) -> object:
    if name == "__version__":
        # Few programs read the version.
        from importlib.metadata import version  # noqa: PLC0415

        return version("torchmesh-fs")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
