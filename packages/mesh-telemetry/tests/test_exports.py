"""The public interface of mesh-telemetry: three modules, with each name in exactly one."""

import mesh_telemetry
import mesh_telemetry.spi
import mesh_telemetry.testing
from mesh_core.testing import PublicSurfaceChecks


class TestPublicModules(PublicSurfaceChecks):
    modules = (mesh_telemetry, mesh_telemetry.spi, mesh_telemetry.testing)
