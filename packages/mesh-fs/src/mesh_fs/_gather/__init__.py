"""Directories of hosts, mounted on the client."""
