"""Streams, and tensors that one stream borrows from another."""
