"""The public API of mesh-rdma: three modules, and each name is in exactly one of them."""

import mesh_rdma
import mesh_rdma.spi
import mesh_rdma.testing
from mesh_core.testing import PublicSurfaceChecks


class TestPublicModules(PublicSurfaceChecks):
    modules = (mesh_rdma, mesh_rdma.spi, mesh_rdma.testing)
