"""Extension interfaces of mesh-fs; there are none yet.

The job extensions of mesh-fs implement `mesh_jobs.spi.JobExtension`.
"""

__all__: list[str] = []
