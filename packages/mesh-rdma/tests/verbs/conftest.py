"""Tests that require a verbs device; `python -m tests.rdma.vm` provides two."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from verbs_peer import Link, linked

from mesh_rdma._verbs.transport import VerbsTransport

#: The length of the memory at both ends of a link.
MEMORY_LEN = 9 << 20

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def transport() -> VerbsTransport:
    """The transport of this process."""
    return VerbsTransport()


@pytest.fixture(autouse=True)
def _usable(transport: VerbsTransport) -> None:
    """Skip the tests if verbs are not available."""
    if reason := transport.probe():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def shared_link(transport: VerbsTransport) -> Iterator[Link]:
    """A link to another process over all devices, shared because opening devices there is slow."""
    with linked(transport, MEMORY_LEN) as link:
        yield link


@pytest.fixture
def link(_usable: None, request: pytest.FixtureRequest) -> Link:
    """The link, with registered memory at the other end that contains only zeros."""
    shared_link: Link = request.getfixturevalue("shared_link")
    shared_link.peer.do("renew")
    shared_link.descriptor = shared_link.peer.do("register", True)
    return shared_link


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that is skipped although the kernel supports verbs."""
    report = yield
    if report.skipped and item.path.parent == HERE and Path("/sys/class/infiniband").is_dir():
        report.outcome = "failed"
        report.longrepr = f"skipped, though there are verbs here: {report.longrepr}"
    return report
