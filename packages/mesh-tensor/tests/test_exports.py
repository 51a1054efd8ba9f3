"""The public interface of mesh-tensor: public modules, with each name in exactly one."""

import mesh_tensor
import mesh_tensor.testing
import mesh_tensor.training
from mesh_core.testing import PublicSurfaceChecks


class TestPublicModules(PublicSurfaceChecks):
    modules = (mesh_tensor, mesh_tensor.training, mesh_tensor.testing)
