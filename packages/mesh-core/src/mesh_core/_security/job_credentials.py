"""Whether the job has credentials, as every process of a host can find out."""

from __future__ import annotations

import contextlib
import os

from mesh_core._program.runtime import is_running, runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._core import Keys
    from mesh_core._program.runtime import Runtime

__all__ = ["has_credentials", "mark_credentials", "set_credentials"]

#: An empty file in the directory of the job, which only its user can enter.
_MARK = "has-credentials"


def has_credentials() -> bool:
    """Return whether the job has credentials, so that it may span machines.

    A program that has not used Mesh yet has none; this does not start Mesh.
    """
    return is_running() and os.path.exists(_path(runtime()))


def set_credentials(current: Runtime, keys: Keys) -> None:
    """Let the process that looks after a host prove itself to other hosts.

    Args:
        current: That process.
        keys: What it proves itself with.

    Raises:
        ValueError: The keys have expired.
    """
    current.engine.set_trust(keys)
    current.has_credentials = True
    mark_credentials(current)


def mark_credentials(current: Runtime) -> None:
    """Tell the processes of this host that the job has credentials, if it has."""
    if current.has_credentials:
        # Without the directory there are no other processes yet: it is marked when it is made.
        with contextlib.suppress(FileNotFoundError):
            os.close(os.open(_path(current), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def _path(current: Runtime) -> str:
    return os.path.join(current.identity.directory, _MARK)
