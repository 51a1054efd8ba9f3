"""Copies of a directory of the client in a directory of every host."""
