"""Directories of the hosts, mounted on the client."""
