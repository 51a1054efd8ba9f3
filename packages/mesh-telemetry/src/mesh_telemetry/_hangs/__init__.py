"""Hangs of collectives and calls: which ranks keep others waiting, and why."""
