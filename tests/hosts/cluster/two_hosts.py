"""The fixture `cluster` of tests that run programs on a client and two hosts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosts.cluster.cluster import WorkerCluster
from tests.hosts.world import World
from tests.hosts.world.possible import why_not


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerCluster]:
    """A client and two hosts with workers."""
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("cluster")
    world = World(["client", "w0", "w1"], shared=[folder])
    try:
        cluster = WorkerCluster(world, folder)
        yield cluster
        cluster.close()
    finally:
        world.close()
