"""Serialization of arguments, results and exceptions."""
