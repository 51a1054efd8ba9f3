"""Processes that run the SQL of users, so that excessive queries or crashes affect no others."""
