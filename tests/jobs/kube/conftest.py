"""The fixtures `cluster` and `namespace`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.jobs.kube.cluster import Cluster


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
