"""The fixtures `cluster` and `namespace`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.kube.cluster import Cluster
from tests.jobs.kube.image import IS_IN_CONTAINERS


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "stand_in: needs controls that only the stand-in has")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that cannot run on another cluster: `-m "not stand_in"` deselects them."""
    for item in items:
        if "stand_in" in getattr(item, "fixturenames", ()):
            item.add_marker("stand_in")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all tests, which use separate namespaces."""
    folder = tmp_path_factory.mktemp("kube")
    cluster = Cluster.given(folder) or Cluster.started(folder)
    yield cluster
    cluster.end()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace for one test that enforces the restricted pod security profile."""
    name = cluster.make_namespace(**{"pod-security.kubernetes.io/enforce": "restricted"})
    yield name
    cluster.delete_namespace(name)


@pytest.fixture
def stand_in(cluster: Cluster) -> Cluster:
    """The cluster if it is the stand-in: for faults that cannot be injected into a real one."""
    if not cluster.is_stand_in:
        pytest.skip("only the stand-in can be told to fail in this way")
    return cluster


@pytest.fixture
def local_files(tmp_path: Path) -> Path:
    """A folder of this machine that pods see, too; pods in containers do not."""
    if IS_IN_CONTAINERS:
        pytest.skip("pods in containers have other files than this machine")
    return tmp_path
