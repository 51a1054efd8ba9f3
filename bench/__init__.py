"""Mesh beside its peer and beside what the machine costs by itself."""
