"""The support for tests that the package offers to users."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh_core import this_host
from mesh_fs import CacheOptions, remotemount
from mesh_fs._fixtures import _mounted_below
from mesh_fs.testing import mount_place as mount_place


@pytest.mark.usefixtures("needs_mounts")
def test_the_mount_place_fixture_detects_open_mounts(
    source: Path, mount_place: Path, cache: CacheOptions
) -> None:
    point = mount_place / "with a blank"
    handler = remotemount(this_host(), source, point, cache=cache).open()
    assert len(_mounted_below(mount_place)) == 1
    handler.close()
    assert _mounted_below(mount_place) == []
