"""Compares Mesh with other systems, and writes the page docs/comparison.md."""
