"""Calls across hosts while something breaks all the time: `python -m tests.hosts.chaos`."""
