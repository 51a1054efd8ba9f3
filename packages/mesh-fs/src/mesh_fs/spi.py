"""Extension interfaces of mesh-fs; there are none yet.

The equipment that mesh-fs offers to mesh-jobs has the form of `mesh_jobs.spi.Equipment`.
"""

__all__: list[str] = []
