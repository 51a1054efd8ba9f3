"""Device meshes: which processes a tensor is on, and which mesh is active."""
