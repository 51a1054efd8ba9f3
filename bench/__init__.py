"""Benchmarks of Mesh against its peer and against what the machine can do at best."""
