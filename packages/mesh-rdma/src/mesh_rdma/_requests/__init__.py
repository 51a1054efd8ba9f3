"""Requests between processes about memory: handlers and the encoding of errors."""
