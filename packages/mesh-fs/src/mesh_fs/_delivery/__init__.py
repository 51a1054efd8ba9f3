"""Chunks on their way from the client to the hosts."""
