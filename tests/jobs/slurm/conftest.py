"""The fixture `cluster`; on a cluster no test may be skipped."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from mesh_core.testing import wait_until
from tests.jobs.slurm.jobs import Jobs, end_all, ids
from tests.jobs.slurm.possible import why_not
from tests.jobs.slurm.remote import RemoteCluster

#: How long processes of a job may run after it was released, in seconds.
ENDED_S_MAX = 10.0


def _reason() -> str | None:
    """Return the reason why these tests cannot run here, or None if they can."""
    if RemoteCluster.here():
        return None
    try:
        return why_not() or "not on a cluster: run python -m tests.jobs.slurm"
    except FileNotFoundError as error:
        return str(error)


def pytest_report_header() -> str:
    return f"SLURM: {_reason() or 'on hosts of a world'}"


@pytest.fixture
def cluster() -> Iterator[RemoteCluster]:
    """The cluster on which the tests run; everything that a test breaks is restored after it."""
    cluster = RemoteCluster.here()
    if cluster is None:
        pytest.skip(_reason() or "")
    yield cluster
    cluster.repair()
    end_all()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a skipped test on a cluster as failed, except for features a backend lacks."""
    report = yield
    is_skipped = report.skipped and not hasattr(report, "wasxfail")
    is_skipped = is_skipped and "this backend cannot" not in str(report.longrepr)
    if is_skipped and item.path.is_relative_to(Path(__file__).parent) and not _reason():
        report.outcome = "failed"
        report.longrepr = f"skipped, though there is a cluster: {report.longrepr}"
    return report


@pytest.fixture
def jobs(cluster: RemoteCluster, tmp_path: Path) -> Iterator[Jobs]:
    """Create jobs in a folder that all nodes see, and check that they leave nothing behind."""
    jobs = Jobs(tmp_path)
    yield jobs
    cluster.repair()
    jobs.close()
    # SLURM reports a job as ended a moment before the last of its processes has exited.
    wait_until(lambda: ids() == [], ENDED_S_MAX)
    for node in cluster.nodes():
        wait_until(lambda node=node: cluster.commands_on(node) == [], ENDED_S_MAX)  # type: ignore[misc]
