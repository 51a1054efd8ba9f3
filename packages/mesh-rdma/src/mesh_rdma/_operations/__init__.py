"""Copies that the owner of the destination buffer runs for another process."""
