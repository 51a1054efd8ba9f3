"""Benchmarks of Mesh against its peer and against the limits of the machine."""
