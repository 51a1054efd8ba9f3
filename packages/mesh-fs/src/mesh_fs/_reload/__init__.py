"""Reloading the modules of a workspace in running processes."""
