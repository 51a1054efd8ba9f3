"""Calls, their futures and streams, and the ports on which replies arrive."""
