"""The private folder that contains the credentials shared by all programs of one user.

Workers and programs without explicit credentials use these on loopback. Programs of the same user
can therefore connect to each other, and other users cannot connect to them.
"""

from __future__ import annotations

import os
import stat

from mesh_core._core import Keys
from mesh_core._security.errors import CredentialsError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["local_keys"]

# Permission bits of users other than the owner.
_OTHERS = 0o077
# For users without a home folder, as in many containers. Another user could create a folder of this
# name first; Mesh then refuses it.
_SHARED = "/tmp"


def local_keys(role: str) -> Keys:
    """Create the keys of this process, signed by the local authority of the current user.

    Args:
        role: `worker` or `controller`.

    Raises:
        CredentialsError: No folder is available, or another user could use or change it.
    """
    try:
        return Keys.local(_folder(), role)
    except ValueError as error:
        raise CredentialsError(str(error)) from None


def _folder() -> str:
    """Return the folder that contains the credentials, or the one to create them in."""
    folders = list(_candidates())
    found = next((folder for folder in folders if os.path.lexists(folder)), None)
    if found is not None:
        return found
    if not folders:
        raise CredentialsError(
            f"no folder for the local credentials of user {os.geteuid()}: neither the home folder "
            f"nor {_SHARED} can be written; set MESH_HOME to a private folder of this user, or "
            "give credentials"
        )
    return folders[0]


def _candidates() -> Iterator[str]:
    """Yield the folders that may contain the credentials, in order of preference.

    The home folder comes first, because the runtime folder is removed when its user logs out, while
    workers continue to run.
    """
    home = os.environ.get("MESH_HOME")
    if home:
        yield os.path.join(os.path.abspath(home), "local")
        return
    home = os.path.expanduser("~")
    if _is_usable(home, others=stat.S_IWOTH):
        yield os.path.join(home, ".mesh", "local")
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    if _is_usable(runtime, others=_OTHERS):
        yield os.path.join(runtime, "mesh", "local")
    if os.access(_SHARED, os.W_OK | os.X_OK):
        yield os.path.join(_SHARED, f"mesh-local-{os.geteuid()}")


def _is_usable(base: str, *, others: int) -> bool:
    """Return whether the user owns a folder, and other users do not have the given rights."""
    try:
        about = os.stat(base)
    except OSError:
        return False
    is_own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
    return is_own and not about.st_mode & others and os.access(base, os.W_OK | os.X_OK)
