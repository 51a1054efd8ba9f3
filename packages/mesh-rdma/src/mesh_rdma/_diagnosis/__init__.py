"""Diagnostics: the transport of each pair of processes, its speed, and connection counts."""
