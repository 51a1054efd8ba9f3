"""Interfaces to the operating system."""
