"""Ownership of meshes and handling of their failures."""
