"""Stacks of processes, taken from outside."""
