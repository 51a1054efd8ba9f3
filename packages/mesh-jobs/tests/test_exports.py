"""The public names of mesh-jobs: three public modules, with each name in exactly one of them."""

import mesh_jobs
import mesh_jobs.spi
import mesh_jobs.testing
from mesh_core.testing import PublicSurfaceChecks


class TestPublicModules(PublicSurfaceChecks):
    modules = (mesh_jobs, mesh_jobs.spi, mesh_jobs.testing)
