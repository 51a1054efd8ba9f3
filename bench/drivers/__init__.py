"""What is measured: Mesh, its peer, and the floors that no framework can go below."""
