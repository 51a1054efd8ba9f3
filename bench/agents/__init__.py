"""Thirty broken programs, and the queries that explain each of them."""
