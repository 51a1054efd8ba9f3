"""Metrics of one process, before they are encoded for a protocol."""
