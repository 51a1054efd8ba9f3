"""Calls across hosts under continuous fault injection: `python -m tests.hosts.chaos`."""
