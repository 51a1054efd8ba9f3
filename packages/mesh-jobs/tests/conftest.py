"""What the tests of this package share: hosts that are started once for a file."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from workers import loopback_hosts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import HostMesh

# Ignored where the tests run in the background; the programs that they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    """Two hosts for all tests of a file that break none."""
    with loopback_hosts(2) as mesh:
        yield mesh


@pytest.fixture
def host(hosts: HostMesh) -> HostMesh:
    """One host."""
    return hosts.slice(hosts=0)
