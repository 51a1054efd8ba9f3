"""The fixtures `owner` and `other_user`: two ordinary users of this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.users import User

#: Ids without an account on a usual machine.
OWNER_UID = 54321
OTHER_UID = 54322


@pytest.fixture(scope="session")
def public_place() -> Iterator[Path]:
    """Create a folder that every user can enter, and remove it with all files that users left."""
    if os.geteuid() != 0:
        pytest.skip("only root can run programs as two other users")
    place = Path(tempfile.mkdtemp(prefix="mesh-users-", dir="/tmp"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="session")
def owner(public_place: Path) -> User:
    """Return the user who runs a Mesh program."""
    return User("owner", OWNER_UID, public_place)


@pytest.fixture(scope="session")
def other_user(public_place: Path) -> User:
    """Return another user of the machine, who attacks it."""
    return User("other", OTHER_UID, public_place)
