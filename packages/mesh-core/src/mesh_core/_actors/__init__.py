"""Execution of actors within their process."""
