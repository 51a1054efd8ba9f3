"""The private folder where the programs of one user keep their common credentials.

Workers and programs that are given no credentials use these on loopback, so programs of the same
user find each other, and nobody else can connect to them.
"""

from __future__ import annotations

import os
import stat

from mesh_core._core import Keys
from mesh_core._security.credentials import CredentialsError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["local_keys"]

# Permission bits of users other than the owner.
_OTHERS = 0o077
# For users without a folder of their own, as in many containers. Another user could take the name
# of the folder there first; then it is refused.
_SHARED = "/tmp"


def local_keys(role: str) -> Keys:
    """Creates the keys of this process, signed by the local authority of the current user.

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
    """Returns the folder that has the credentials, or the one to create them in."""
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
    """Yields the folders that may have the credentials, best first.

    The home folder is first, because the runtime folder is removed when its user logs out, while
    workers go on.
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
    """Says whether a folder is this user's own, and other users do not have the given rights."""
    try:
        about = os.stat(base)
    except OSError:
        return False
    is_own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
    return is_own and not about.st_mode & others and os.access(base, os.W_OK | os.X_OK)
