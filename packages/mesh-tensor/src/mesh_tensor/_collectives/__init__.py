"""Reducing the values of processes, and moving them between meshes."""
