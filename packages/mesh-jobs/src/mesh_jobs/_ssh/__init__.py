"""Hosts over SSH."""
