"""The subjects of the measurements: Mesh, its peer, and floors that no framework can beat."""
