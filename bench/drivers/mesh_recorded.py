"""Drives `mesh_core` with actors that are recorded."""

from __future__ import annotations

from bench.drivers.driver import Driver
from bench.drivers.mesh import driver as plain_driver
from mesh_core.recording import record


def driver() -> Driver:
    """Return the driver of `mesh_core`, whose actors are recorded."""
    record()
    return plain_driver()
