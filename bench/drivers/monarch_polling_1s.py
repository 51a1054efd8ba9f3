"""Drives the peer with the setting that a user would choose to detect dead processes earlier."""

from __future__ import annotations

import os

# The peer reads the variable at import, and its processes inherit it.
os.environ["HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY"] = "1s"

from bench.drivers.monarch import driver

__all__ = ["driver"]
