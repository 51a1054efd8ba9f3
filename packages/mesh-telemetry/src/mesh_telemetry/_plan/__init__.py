"""Splits a planned query into parts for hosts, and the rest that is computed over their rows."""
