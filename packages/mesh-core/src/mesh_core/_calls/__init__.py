"""Calls, their futures and streams, and the ports that answers arrive at."""
