"""The public interface of mesh-fs: public modules, with each name in exactly one."""

import mesh_fs
import mesh_fs.testing
from mesh_core.testing import PublicSurfaceChecks


class TestPublicModules(PublicSurfaceChecks):
    modules = (mesh_fs, mesh_fs.testing)
