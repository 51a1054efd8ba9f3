"""Rows on disk, which can be queried after the program has ended."""
