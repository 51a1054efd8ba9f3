"""The fixtures `worlds` and `world`. No test may be skipped if hosts are available."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.hosts.cluster import Program, WorkerCluster
from tests.hosts.world import World
from tests.hosts.world.possible import why_not

#: Number of hosts of `world` without a marker.
HOSTS = 2


class Worlds(Protocol):
    """Creates worlds that end with the test."""

    def __call__(self, hosts: int | Sequence[str] = HOSTS, **settings: Any) -> World:
        """Create this number of hosts, named h0, h1 and so on, or hosts with these names."""
        ...


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "hosts(names_or_number): the hosts of the `world` fixture")
    config.addinivalue_line("markers", "last: waits for something that begins with the tests")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move tests marked `last` to the end: they wait for time that the others use."""
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


def pytest_report_header() -> str:
    return f"hosts: {_reason() or 'in network namespaces'}"


def _reason() -> str | None:
    try:
        return why_not()
    except FileNotFoundError as error:
        return str(error)


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[Worlds]:
    """Create worlds whose hosts share `tmp_path`; skip if the machine cannot emulate hosts."""
    if reason := why_not():
        pytest.skip(reason)
    made: list[World] = []

    def make(hosts: int | Sequence[str] = HOSTS, **settings: Any) -> World:
        names = [f"h{number}" for number in range(hosts)] if isinstance(hosts, int) else hosts
        world = World(names, shared=[tmp_path, *settings.pop("shared", ())], **settings)
        made.append(world)
        return world

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(request: pytest.FixtureRequest, worlds: Worlds) -> World:
    """A world of two hosts, or of the hosts that `@pytest.mark.hosts(...)` requests."""
    marker = request.node.get_closest_marker("hosts")
    return worlds(*marker.args, **marker.kwargs) if marker else worlds()


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerCluster]:
    """A client and four hosts with workers, shared by all tests of a file."""
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("cluster")
    names = ["client", "w0", "w1", "w2", "w3"]
    with World(names, shared=[folder]) as world, WorkerCluster(world, folder) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: WorkerCluster) -> Iterator[WorkerCluster]:
    """The client and the four hosts; everything that a test stops is restored after it."""
    yield shared_cluster
    shared_cluster.repair()


@pytest.fixture
def program(cluster: WorkerCluster) -> Iterator[Program]:
    """A program on the client that has not attached any worker yet."""
    with cluster.program() as program:
        yield program


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a skipped test as failed if the machine can emulate hosts."""
    report = yield
    is_skipped = report.skipped and not hasattr(report, "wasxfail")
    if is_skipped and item.path.is_relative_to(Path(__file__).parent) and not _reason():
        report.outcome = "failed"
        report.longrepr = f"skipped, though hosts can be made here: {report.longrepr}"
    return report
