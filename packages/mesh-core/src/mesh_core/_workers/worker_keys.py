"""The keys with which a worker authenticates itself."""

from __future__ import annotations

from mesh_core._security.credentials import Credentials

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._core import Keys

__all__ = ["worker_keys"]


def worker_keys(folder: str) -> Keys:
    """Load the keys of a worker from a folder, or the keys of its user if the name is empty.

    Raises:
        CredentialsError: The keys do not exist, or another user could use or change them.
    """
    return (Credentials.load(folder) if folder else Credentials.local(role="worker"))._keys
