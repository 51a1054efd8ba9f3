"""Packages together in one program."""
