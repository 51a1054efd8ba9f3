"""Drives the peer with the setting a user would choose to hear of dead processes sooner."""

from __future__ import annotations

import os

# Read when the peer is imported, and inherited by the processes it starts.
os.environ["HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY"] = "1s"

from bench.drivers.monarch import driver

__all__ = ["driver"]
