"""Shared fixtures of this package: processes that are started once, time limits, a leak check."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from host_fixtures import modules as modules
from host_fixtures import recorder as recorder
from host_recorder import children, wait_until_gone
from memory_cgroup import limited as limited

import mesh_core
from mesh_core import this_host
from mesh_core._runtime import runtime as _runtime
from mesh_core._supervision.policy import set_unhandled_fault_hook

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import ProcMesh

# These signals are ignored if the tests run in the background, and child processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

TEST_TIMEOUT_S = 120
RANKS = 4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test a timeout, so that a wait that never ends is reported as a failure."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


@pytest.fixture(scope="session")
def unhandled_reports() -> list[str]:
    """Reports of unhandled failures, which would otherwise end the program, here the test run."""
    reports: list[str] = []
    set_unhandled_fault_hook(lambda failure: reports.append(failure.report()))
    return reports


@pytest.fixture(autouse=True)
def no_failure_is_left(unhandled_reports: list[str]) -> Iterator[None]:
    """Check that every failure is handled; one at the end of a test may appear in the next test."""
    yield
    found = "\n".join(unhandled_reports)
    unhandled_reports.clear()
    assert not found, f"a failure of this test, or of the one before, was left to nobody:\n{found}"


@pytest.fixture(scope="session")
def latest_procs() -> list[ProcMesh]:
    """The processes that tests share, once they exist."""
    return []


@pytest.fixture(scope="module")
def all_procs(latest_procs: list[ProcMesh]) -> ProcMesh:
    """Four processes for the whole module; tests do not have to stop the actors they spawn."""
    return living_procs(latest_procs)


@pytest.fixture
def procs(all_procs: ProcMesh, latest_procs: list[ProcMesh]) -> ProcMesh:
    """The four processes, or four new ones after a test has shut Mesh down."""
    return living_procs(latest_procs)


def living_procs(latest: list[ProcMesh]) -> ProcMesh:
    """Return the latest processes, or new ones if those have exited."""
    owned = _runtime.runtime().ownership._owned if _runtime.is_running() else {}
    if not latest or latest[-1]._uid not in owned:
        latest.append(this_host().spawn_procs({"gpus": RANKS}, name="tests"))
        latest[-1].initialized.get()
    return latest[-1]


@pytest.fixture
def proc(procs: ProcMesh) -> ProcMesh:
    """One process."""
    return procs.slice(gpus=0)


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left(unhandled_reports: list[str]) -> Iterator[None]:
    """Shut Mesh down after the last test, and check that no process survives."""
    yield
    if _runtime.is_running():
        mesh_core.shutdown_context().get(timeout=30)
    assert unhandled_reports == []
    wait_until_gone(descendants(os.getpid()))
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)  # There is not even an unreaped child.


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process."""
    below = children(pid)
    return [*below, *(each for child in below for each in descendants(child))]
