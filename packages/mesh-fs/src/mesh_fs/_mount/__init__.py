"""Mounts of a directory of the client on every host."""
