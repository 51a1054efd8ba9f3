"""The meshes that telemetry spawns for itself."""

from __future__ import annotations

__all__ = ["OWN_NAMES"]

#: Names of the meshes that telemetry spawns for itself; they are not recorded.
OWN_NAMES = frozenset({"mesh-telemetry", "mesh-telemetry-collector", "mesh-telemetry-coordinator"})
