"""Workers that look like machines, and a job on them."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest
from workers import WorkerProcess

from mesh_core import attach_to_workers, configured, shutdown_context

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mesh_core import Credentials, HostMesh


@contextmanager
def running_workers(count: int) -> Iterator[list[WorkerProcess]]:
    """Start workers, and end them after the test."""
    with ExitStack() as stack:
        yield [stack.enter_context(WorkerProcess()) for _ in range(count)]


@pytest.fixture
def workers() -> Iterator[list[WorkerProcess]]:
    """Three workers, which look like three machines."""
    with running_workers(3) as started:
        yield started


@pytest.fixture
def fresh_job(workers: list[WorkerProcess]) -> Iterator[None]:
    """Give each test a separate job, which ends before the workers do."""
    shutdown_context().get()
    yield
    shutdown_context().get()


@pytest.fixture
def frequent_heartbeats(fresh_job: None) -> Iterator[None]:
    """Detect the loss of a machine soon, in a separate job for each test."""
    with configured(heartbeat_s=0.2):
        yield


def attached(
    workers: Sequence[WorkerProcess], standby: int = 0, credentials: Credentials | None = None
) -> HostMesh:
    """Attach workers to a job, the last of them as standby workers."""
    addresses = [worker.address for worker in workers]
    return attach_to_workers(addresses, standby=standby, credentials=credentials)
