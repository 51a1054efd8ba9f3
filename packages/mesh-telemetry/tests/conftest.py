"""Shared fixtures of telemetry tests: a folder for events, checks that nothing is left behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from mesh_core import shutdown_context
from mesh_core.spi import current_process
from mesh_core.testing import local_procs as local_procs
from mesh_core.testing import wait_until

TEST_TIMEOUT_S = 120

# Arrow can be preloaded only if its allocator starts no thread.
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test a timeout, so that a wait that never ends is reported as a failure."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


@pytest.fixture(scope="session")
def preloaded_too() -> tuple[str, ...]:
    """The modules of the telemetry process."""
    return ("mesh_telemetry._hosts.host_rows", "mesh_telemetry._tables.host_tables")


@pytest.fixture(scope="session", autouse=True)
def runtime_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use one folder for the files of served programs in all tests.

    A template forks only processes that have the environment in which it has imported its modules.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))
        yield


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in which processes store their events; it must be empty at the end."""
    with _place() as made:
        yield made


@pytest.fixture(scope="module")
def shared_place() -> Iterator[Path]:
    """A folder as `place`, for the telemetry that the tests of a file share."""
    with _place() as made:
        yield made


@contextmanager
def _place() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="tel-", dir="/dev/shm"))
    try:
        yield made
        # A process that was stopped during an operation removes its folder shortly afterwards.
        wait_until(lambda: not list(made.iterdir()), 30.0)
    finally:
        shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def no_meshes_are_left() -> Iterator[None]:
    """Check that tests stop their meshes, which later tests would find in their tables."""
    yield
    # A mesh that a test has stopped without waiting ends shortly afterwards.
    with suppress(AssertionError):
        wait_until(lambda: not _meshes(), 30.0)
    assert _meshes() == [], "a test of this module has not stopped these meshes"


def _meshes() -> list[str]:
    """Return the names of the meshes that this process owns."""
    return [event.text for event in current_process.snapshot() if event.kind == "spawned"]


@pytest.fixture(scope="session", autouse=True)
def no_job_is_left() -> Iterator[None]:
    """Shut down everything that tests have started."""
    yield
    shutdown_context().get(60)
