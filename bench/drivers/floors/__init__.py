"""The costs of the kernel and of Python alone, without routing, supervision or recovery."""
