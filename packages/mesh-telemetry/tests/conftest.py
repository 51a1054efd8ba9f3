"""What the tests of telemetry share: a place for events, and that nothing stays behind."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh_core import shutdown_context
from mesh_core.testing import local_procs as local_procs
from mesh_core.testing import wait_until

TEST_TIMEOUT_S = 120


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """No test may hang: a wait that never ends is a failure like any other."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


@pytest.fixture
def place() -> Iterator[Path]:
    """Where processes keep their events; nothing is left there at the end."""
    made = Path(tempfile.mkdtemp(prefix="tel-", dir="/dev/shm"))
    try:
        yield made
        # What was stopped in the middle of something removes its folder a moment later.
        wait_until(lambda: not list(made.iterdir()), 30.0)
    finally:
        shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def no_job_is_left() -> Iterator[None]:
    """Ends what tests have started."""
    yield
    shutdown_context().get(60)
