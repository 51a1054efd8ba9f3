"""Servers for other programs of the same user."""
