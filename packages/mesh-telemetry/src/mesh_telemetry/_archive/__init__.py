"""Rows of programs that have ended: querying them, and exporting the rows of a running program."""
