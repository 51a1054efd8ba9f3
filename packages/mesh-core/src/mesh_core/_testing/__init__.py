"""Implementation of `mesh_core.testing`."""
