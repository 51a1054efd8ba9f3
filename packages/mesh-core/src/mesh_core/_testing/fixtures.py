"""Fixture for processes that end with a test. Only this module imports pytest at import time."""

from __future__ import annotations

import pytest

from mesh_core._testing.local_procs import LocalProcs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["local_procs"]


@pytest.fixture
def local_procs() -> Iterator[LocalProcs]:
    """Spawns processes on this host that end with the test: `local_procs({"gpus": 2})`."""
    procs = LocalProcs()
    try:
        yield procs
    finally:
        procs.close()
