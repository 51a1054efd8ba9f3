"""The public interface of mesh-fs: three modules, with each name in exactly one."""

import mesh_fs
import mesh_fs.spi
import mesh_fs.testing
from mesh_core.testing import PublicSurfaceChecks


class TestDoors(PublicSurfaceChecks):
    doors = (mesh_fs, mesh_fs.spi, mesh_fs.testing)
