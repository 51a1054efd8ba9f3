"""Fixtures that the tests of this package share: hosts that are started once per file."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from workers import loopback_hosts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import HostMesh

# SIGINT is ignored if the tests run in the background, and started programs would inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    """Two hosts for all tests of a file that leave them usable."""
    with loopback_hosts(2) as mesh:
        yield mesh


@pytest.fixture
def host(hosts: HostMesh) -> HostMesh:
    """One host."""
    return hosts.slice(hosts=0)
