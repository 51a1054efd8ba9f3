"""The fixture `crew` of tests that run programs on a client and two hosts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosts.crew.crew import Crew
from tests.hosts.world import World
from tests.hosts.world.possible import why_not


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """A client and two hosts with workers."""
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("crew")
    world = World(["client", "w0", "w1"], shared=[folder])
    try:
        crew = Crew(world, folder)
        yield crew
        crew.close()
    finally:
        world.close()
