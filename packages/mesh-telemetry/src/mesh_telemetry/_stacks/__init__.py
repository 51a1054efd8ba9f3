"""Stacks of processes, read from outside with py-spy."""
