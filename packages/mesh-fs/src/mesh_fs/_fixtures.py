"""A place for mounts in tests. The one module that needs pytest at its import."""

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
    """A folder to mount below; the test fails if something stays mounted there."""
    place = tmp_path / "mounts"
    place.mkdir()
    yield place
    wait_until(lambda: not _mounted_below(place), _END_LIMIT_S)


def _mounted_below(place: Path) -> list[str]:
    # As the kernel writes a path with blanks.
    inner = os.path.realpath(place).replace(" ", "\\040")
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = (line.split()[4] for line in lines)
    return [point for point in points if point == inner or point.startswith(f"{inner}/")]
