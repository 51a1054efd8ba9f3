"""The public surface of mesh-tensor: three doors, and each name behind exactly one of them."""

import mesh_tensor
import mesh_tensor.spi
import mesh_tensor.testing
from mesh_core.testing import PublicSurfaceChecks


class TestDoors(PublicSurfaceChecks):
    doors = (mesh_tensor, mesh_tensor.spi, mesh_tensor.testing)
