"""TCP port forwarding through the mesh."""
