"""Distributed tensors as the program sees them, and moving their values in and out."""
