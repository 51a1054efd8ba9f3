"""What the tests of this package share: processes that are started once, limits, a leak check."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import mesh_core
from mesh_core import _runtime, this_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import ProcMesh

TEST_TIMEOUT_S = 60
RANKS = 4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """No test may hang: a wait that never ends is a failure like any other."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


@pytest.fixture(scope="session")
def all_procs() -> ProcMesh:
    """Four processes for the whole run; what a test spawns there it need not stop."""
    return this_host().spawn_procs({"gpus": RANKS}, name="tests")


@pytest.fixture
def procs(all_procs: ProcMesh) -> ProcMesh:
    """The four processes, or four new ones when a test has shut Mesh down."""
    if _runtime.is_running() and all_procs._uid in _runtime.runtime().ownership._owned:
        return all_procs
    return this_host().spawn_procs({"gpus": RANKS}, name="tests")


@pytest.fixture
def proc(procs: ProcMesh) -> ProcMesh:
    """One process."""
    return procs.slice(gpus=0)


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Ends Mesh after the last test, and sees that no process outlives it."""
    yield
    if not _runtime.is_running():
        return
    mesh_core.shutdown_context().get(timeout=30)
    left = descendants(os.getpid())
    for _ in range(100):
        if not left:
            return
        time.sleep(0.05)
        left = descendants(os.getpid())
    pytest.fail(f"processes are left behind: {left}")


def descendants(pid: int) -> list[str]:
    """Gives the command lines of all processes below one."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            pids = children.read_text().split()
        except OSError:
            continue
        for child in pids:
            try:
                command = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            found.append(f"{child}: {command}")
            found.extend(descendants(int(child)))
    return found
