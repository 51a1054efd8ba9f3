"""Answering other programs of the same user."""
