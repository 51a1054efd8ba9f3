"""Hosts on this machine."""
