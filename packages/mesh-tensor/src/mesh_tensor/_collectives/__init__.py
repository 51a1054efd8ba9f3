"""Combining values of processes, and moving them between meshes."""
