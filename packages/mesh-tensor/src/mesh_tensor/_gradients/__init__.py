"""Gradients one at a time, in the order in which the program wants them."""
