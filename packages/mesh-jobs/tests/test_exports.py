"""The public surface of mesh-jobs: three doors, and each name behind exactly one of them."""

import mesh_jobs
import mesh_jobs.spi
import mesh_jobs.testing
from mesh_core.testing import DoorChecks


class TestDoors(DoorChecks):
    doors = (mesh_jobs, mesh_jobs.spi, mesh_jobs.testing)
