"""A marker that shows every process of a host whether the job has credentials."""

from __future__ import annotations

import contextlib
import os

from mesh_core._runtime.runtime import is_running, runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._core import Keys
    from mesh_core._runtime.runtime import Runtime

__all__ = ["has_credentials", "mark_credentials", "set_credentials"]

#: An empty file in the directory of the job, which only its user can access.
_MARK = "has-credentials"


def has_credentials() -> bool:
    """Return whether the job has credentials and can therefore span machines.

    False in a program that has not used Mesh yet; the call does not start Mesh.
    """
    return is_running() and os.path.exists(_path(runtime()))


def set_credentials(current: Runtime, keys: Keys) -> None:
    """Set the keys with which the agent of a host authenticates itself to other hosts.

    Args:
        current: The runtime of the agent's process.
        keys: The keys.

    Raises:
        ValueError: The keys have expired.
    """
    current.engine.set_trust(keys)
    current.has_credentials = True
    mark_credentials(current)


def mark_credentials(current: Runtime) -> None:
    """Create the marker for the processes of this host if the job has credentials."""
    if current.has_credentials:
        # While the directory does not exist, the host has no other processes. The marker is then
        # created with the directory.
        with contextlib.suppress(FileNotFoundError):
            os.close(os.open(_path(current), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def _path(current: Runtime) -> str:
    return os.path.join(current.identity.directory, _MARK)
