"""The public surface of mesh-telemetry: three doors, and each name behind exactly one of them."""

import mesh_telemetry
import mesh_telemetry.spi
import mesh_telemetry.testing
from mesh_core.testing import PublicSurfaceChecks


class TestDoors(PublicSurfaceChecks):
    doors = (mesh_telemetry, mesh_telemetry.spi, mesh_telemetry.testing)
