"""Typical mistakes of newcomers, and the messages that they get."""
