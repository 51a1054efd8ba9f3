"""Device meshes: the processes of a tensor, and the active mesh."""
