"""What the tests of this package share: hosts that are started once, and a limit of time."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from workers import END_LIMIT_S, loopback_hosts

from mesh_core import shutdown_context

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import HostMesh

# Ignored where the tests run in the background; the programs that they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def hosts() -> Iterator[HostMesh]:
    """Two hosts for all tests that break none."""
    with loopback_hosts(2) as mesh:
        yield mesh
    shutdown_context().get(timeout=END_LIMIT_S)


@pytest.fixture
def host(hosts: HostMesh) -> HostMesh:
    """One host."""
    return hosts.slice(hosts=0)
