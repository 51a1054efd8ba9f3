"""Distributed tensors of the program, and sending and fetching their values."""
