"""A memory cgroup for tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

MIB = 1 << 20
MEMORY = Path("/sys/fs/cgroup/memory")
UNIFIED = Path("/sys/fs/cgroup")


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Path]:
    """A cgroup with a limit of 200 MiB."""
    is_unified = (UNIFIED / "cgroup.controllers").exists()
    folder = (UNIFIED if is_unified else MEMORY) / f"mesh-test-{os.getpid()}"
    name = "memory.max" if is_unified else "memory.limit_in_bytes"
    try:
        folder.mkdir()
        (folder / name).write_text(str(200 * MIB))
    except OSError as error:
        pytest.skip(f"no memory cgroup can be created: {error}")
    yield folder
    folder.rmdir()
