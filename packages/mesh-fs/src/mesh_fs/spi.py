"""For those who build on mesh-fs: nothing yet.

What it offers to mesh-jobs has the form that `mesh_jobs.spi.Equipment` describes.
"""

__all__: list[str] = []
