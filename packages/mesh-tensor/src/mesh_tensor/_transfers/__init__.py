"""Tensors that travel between the program and the processes."""
