"""The public interface of mesh-tensor: three modules, with each name in exactly one."""

import mesh_tensor
import mesh_tensor.spi
import mesh_tensor.testing
from mesh_core.testing import PublicSurfaceChecks


class TestDoors(PublicSurfaceChecks):
    doors = (mesh_tensor, mesh_tensor.spi, mesh_tensor.testing)
