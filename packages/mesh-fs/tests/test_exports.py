"""The public surface of mesh-fs: three doors, and each name behind exactly one of them."""

import mesh_fs
import mesh_fs.spi
import mesh_fs.testing
from mesh_core.testing import PublicSurfaceChecks


class TestDoors(PublicSurfaceChecks):
    doors = (mesh_fs, mesh_fs.spi, mesh_fs.testing)
