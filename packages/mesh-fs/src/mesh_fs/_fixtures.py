"""The fixture `mount_place` for tests. Only this module imports pytest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mesh_core.testing import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["mount_place"]

_END_LIMIT_S = 30.0


@pytest.fixture
def mount_place(tmp_path: Path) -> Iterator[Path]:
    """A folder for mountpoints; the test fails if anything remains mounted below it."""
    place = tmp_path / "mounts"
    place.mkdir()
    yield place
    wait_until(lambda: not _mounted_below(place), _END_LIMIT_S)


def _mounted_below(place: Path) -> list[str]:
    # The kernel escapes spaces in paths in this way.
    inner = os.path.realpath(place).replace(" ", "\\040")
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = (line.split()[4] for line in lines)
    return [point for point in points if point == inner or point.startswith(f"{inner}/")]
